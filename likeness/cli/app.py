"""`likeness`: the command line, which puts jobs, index and api together.

Commands import what they need when they run: FastAPI, Ray and torch each take seconds that `--help` should not cost,
and pydantic's models a tenth of one.
"""

import errno
import io
import os
import signal
import sys
import threading
from typing import Annotated, Final

import typer
from rich.markup import escape

from api.errors import ApiError
from embedder.errors import EmbedderError
from embedder.machine import cpu_quota
from embedder.openmp import OPENMP_ENVIRONMENT
from index.errors import DISK_FULL, CollectionError
from jobs.errors import JobError
from likeness.cli.annotate import annotate, match, select
from likeness.cli.collection import columns, evaluate, info, rejects
from likeness.cli.demo import demo
from likeness.cli.duplicates import duplicates
from likeness.cli.embed import embed, reembed
from likeness.cli.exchange import export, import_
from likeness.cli.index import compact, index, promote, prune, rollback, versions
from likeness.cli.options import HelpCommand, HelpGroup, console, error_console
from likeness.cli.schedule import history, schedule, watch
from likeness.cli.search import search
from likeness.cli.serve import keys, serve

_ADVICE: Final = {
    **dict.fromkeys(
        DISK_FULL, "free some space there and run the same command again; what was complete before is unchanged"
    ),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "a part of this path is a file: expected folders"),
    errno.EISDIR: "expected the path of a file",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM),
        "expected a place that this user may read, and write if the command changes something there",
    ),
    errno.EROFS: "expected a place that this user may write",
}
"""By a system's error, what to do."""


def main() -> None:
    """Run the command line. A usage error prints one line on stderr and exits with 2; a failed job exits with 1, one
    with too many images missing from its source with 3, and one that may succeed later with 75, as in sysexits.
    """
    for name, value in OPENMP_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if quota := cpu_quota():  # OpenMP sees all cores of a machine
        os.environ.setdefault("OMP_NUM_THREADS", str(quota))
    # Lines are wrapped only on a terminal. Characters that the locale lacks are printed as escapes.
    console.soft_wrap = not console.is_terminal
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    _interrupted.clear()
    signal.signal(signal.SIGTERM, _interrupt)  # systemd and Kubernetes stop a process with it: treat it like Ctrl-C
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        _run()
    except KeyboardInterrupt:
        error_console.print("[yellow]interrupted[/yellow]")
        sys.exit(130)
    # OSError: no permission to read or write, or a bucket or cluster that does not exist.
    except (JobError, CollectionError, EmbedderError, ApiError, OSError) as error:
        advice = isinstance(error, OSError) and _ADVICE.get(error.errno or 0)
        _fail(f"{error}: {advice}" if advice else error, getattr(error, "exit_code", 2))


def _run() -> None:
    try:
        app()
    except Exception as error:
        if _interrupted.is_set():  # which code in C turns into another exception: an import, for example
            raise KeyboardInterrupt from error
        raise


def _interrupt(*_: object) -> None:
    _interrupted.set()
    raise KeyboardInterrupt


_interrupted: Final = threading.Event()


def _fail(error: object, code: int) -> None:
    printable = "".join(letter if letter.isprintable() else " " for letter in str(error))
    line = " ".join(printable.split()) or type(error).__name__
    error_console.print(f"[bold red]error:[/bold red] {escape(line)}", soft_wrap=True, highlight=False)
    sys.exit(code)


app = typer.Typer(
    cls=HelpGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _show_version(requested: bool) -> None:
    if requested:
        import importlib.metadata

        print(f"likeness {importlib.metadata.version('likeness')}")
        raise typer.Exit


@app.callback()
def likeness(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Find images that look alike: embed a folder, bucket or list, index it, search it and serve it."""


for _command in (
    *(embed, reembed, annotate, match, columns, select, schedule, watch, history, index, search, serve),
    *(rejects, info, evaluate, duplicates, versions, promote, rollback, prune, compact, export, demo),
):
    app.command(cls=HelpCommand)(_command)
app.command("import", cls=HelpCommand)(import_)
app.add_typer(keys, name="keys")
