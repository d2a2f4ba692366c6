"""`likeness`: the command line. Here, and in `serve_commands`, jobs, index and api are put together.

Commands import what they need when they run: FastAPI, Ray and torch each take seconds that `--help` should not cost.
"""

import importlib.metadata
import io
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape

from api.errors import ApiError
from api.errors import RayStartError as ServeRayStartError
from embedder.errors import EmbedderError, FetchError
from embedder.openmp import WAITING
from index.collection import Collection
from index.errors import CollectionError, LeaseError, RecallTooLowError
from index.match import Match
from index.queries import MAX_K, Example, SearchOptions
from index.storage.disk import DISK_FULL
from jobs.cli.images import embed, info, rejects, show_embedded
from jobs.cli.index import build_index, compact, duplicates, promote, prune, rollback, versions
from jobs.cli.options import (
    CollectionArgument,
    FormatOption,
    HelpCommand,
    HelpGroup,
    MovedModelOption,
    OutputFormat,
    console,
    print_json,
    without_none,
)
from jobs.cli.reembed import reembed
from jobs.cli.schedule import history, schedule
from jobs.cli.serve import keys, serve
from jobs.errors import JobError, RayStartError, TooManyMissingError, TooManyRejectsError, UsageError
from jobs.values import DEMO_MODEL, model_named, parse_filter

errors = Console(stderr=True)

FULL_REMEDY = "free some space there and run the same command again; what was complete before is as it was"


def main() -> None:
    """Run the command line.

    A mistake is one line on stderr and exit code 2; a failed job exits with 1, one that found too much gone from its
    source with 3; while another job writes to the collection, or if Ray does not start, one exits with 75, which is
    sysexits' "try again later".
    """
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)
    # Lines are wrapped by a terminal alone, and every letter can be printed in every locale.
    console.soft_wrap = not console.is_terminal
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # systemd and Kubernetes stop a process with SIGTERM: it ends as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except KeyboardInterrupt:
        errors.print("[yellow]interrupted[/yellow]")
        sys.exit(130)
    except (TooManyRejectsError, RecallTooLowError) as error:
        _fail(error, 1)
    except TooManyMissingError as error:
        _fail(error, 3)
    except (LeaseError, RayStartError, ServeRayStartError) as error:
        _fail(error, os.EX_TEMPFAIL)
    # OSError: a place that may not be read or written, or a bucket or cluster that is not there.
    except (JobError, CollectionError, EmbedderError, ApiError, OSError) as error:
        _fail(f"{error}: {FULL_REMEDY}" if isinstance(error, OSError) and error.errno in DISK_FULL else error, 2)
    except ValidationError as error:
        _fail(_settings_message(error), 2)


def _fail(error: object, code: int) -> None:
    printable = "".join(letter if letter.isprintable() else " " for letter in str(error))
    line = " ".join(printable.split()) or type(error).__name__
    errors.print(f"[bold red]error:[/bold red] {escape(line)}", soft_wrap=True, highlight=False)
    sys.exit(code)


def _settings_message(error: ValidationError) -> str:
    """The message for invalid settings. Typer checks options, so an error here comes from the environment."""
    wrong = [(".".join(map(str, e["loc"])), e["msg"], e["input"]) for e in error.errors()]
    return "; ".join(f"LIKENESS_{name.upper()}: {message}, got {value!r}" for name, message, value in wrong)


def search(
    collection: CollectionArgument,
    query: Annotated[str | None, typer.Argument(help="A picture: path or URL. For words see --text.")] = None,
    text: Annotated[str | None, typer.Option(help="Words instead of a picture.")] = None,
    like: Annotated[
        list[str] | None,
        typer.Option(help="The id of an image of the collection instead; may be repeated."),
    ] = None,
    unlike: Annotated[
        list[str] | None, typer.Option(help="With --like: the id of an image that matches should be unlike.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many matches.")] = 10,
    offset: Annotated[int, typer.Option(min=0, help="How many matches to skip.")] = 0,
    min_score: Annotated[float | None, typer.Option(min=-1, max=1, help="The lowest cosine of a match.")] = None,
    distinct: Annotated[
        float | None,
        typer.Option(min=-1, max=1, help="Fold images with at least this cosine into one: 0.98."),
    ] = None,
    filter: Annotated[str | None, typer.Option(help="A filter on columns, in JSON: see the example.")] = None,
    model: MovedModelOption = None,
    output: FormatOption = OutputFormat.table,
) -> None:
    """Find the images most like a picture, or like words. No server is needed.

    Examples: `likeness search my-collection cat.jpg`, `likeness search my-collection --text "a red star"`,
    `likeness search my-collection --like cat.jpg --filter '{"width": {"$gte": 640}}' --min-score 0.8`
    """
    from api.compose import build_service
    from api.search.plain import plain
    from api.settings import ServeSettings
    from jobs.cli.tables import match_table

    if unlike and not like:
        raise UsageError("--unlike goes with --like: also name an image that matches should be like")
    if [query is not None, text is not None, bool(like)].count(True) != 1:
        raise UsageError("expected one of a picture, --text and --like")
    if offset >= MAX_K:
        raise UsageError(f"--offset is {offset:,}: expected at most {MAX_K - 1:,}")
    if not 1 <= k <= MAX_K - offset:
        raise UsageError(f"-k is {k}: expected 1 to {MAX_K - offset:,}" + (f" after {offset:,}" if offset else ""))
    options = SearchOptions(offset=offset, min_score=min_score, distinct=distinct, filter=parse_filter(filter))
    if like:
        matches = _more_like(collection, like=like, unlike=unlike or [], k=k, options=options)
    else:
        # Before the model, which takes seconds.
        Collection.open(collection)
        picture = None if query is None else _picture(query)
        with console.status("loading the index and the model"):
            settings = ServeSettings(**without_none(collection=collection, model=model and model_named(model)))
            service = build_service(settings)
        with closing(service):
            if picture is None:
                matches = service.search_by_text(text or "", k, **options).matches
            else:
                matches = service.search_by_bytes(picture, k, **options).matches
    if output is OutputFormat.json:
        print_json([plain(asdict(match)) for match in matches])
    else:
        console.print(match_table(matches, first=offset + 1))


def _picture(query: str) -> bytes:
    """The bytes of a picture. Typed on the user's own command line, it may be a local file or on a private host."""
    from embedder.fetch import Fetcher
    from embedder.fetch.policy import FetchPolicy

    try:
        return Fetcher(FetchPolicy()).fetch(query)
    except FetchError as error:
        if "://" in query or error.reason not in ("not_found", "bad_uri"):
            raise
        raise FetchError(error.reason, f"{error} Words are searched with --text {shlex.quote(query)}") from error


def _more_like(collection: str, *, like: list[str], unlike: list[str], k: int, options: SearchOptions) -> list[Match]:
    """Search by images of the collection, without loading a model."""
    from index.search.searcher import open_last_good

    with console.status("loading the index"):
        searcher = open_last_good(Collection.open(collection))
    matches = searcher.more_like([*map(Example, like)], [*map(Example, unlike)], k, **options)
    if len(like) > 1 or unlike:
        return matches  # a mix scores on another scale than an image
    return [replace(match, percentile=searcher.percentile(match.score)) for match in matches]


def demo(
    folder: Annotated[Path, typer.Option(help="Where the gallery and its collection go.")] = Path("demo-data"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    once: Annotated[bool, typer.Option("--once", help="End after the first answers.")] = False,
) -> None:
    """Draw 2,000 pictures, embed and index them, search by picture, URL and words, and serve the result.

    Example: `likeness demo --once`
    """
    from api.compose import build_service
    from api.http.app import create_app
    from api.local import running
    from api.settings import ServeSettings
    from jobs.demo.gallery import make_gallery
    from jobs.demo.tour import show_queries
    from jobs.update import ReembedSettings
    from jobs.update import reembed as bring_up_to_date

    pictures, collection = folder / "pictures", folder / "collection"
    with console.status(f"drawing 2,000 pictures into {pictures}"):
        gallery = make_gallery(pictures)
    job = ReembedSettings(source=str(pictures), collection=str(collection), model=str(DEMO_MODEL), missing="keep")
    show_embedded(bring_up_to_date(job, console))
    port = _free_port(port)
    # The tour's URL query names this server itself.
    settings = ServeSettings(collection=str(collection), port=port, allowed_hosts=frozenset({f"127.0.0.1:{port}"}))
    with (
        closing(build_service(settings)) as service,
        running(create_app(service, limits=settings.limits()), port=port) as url,
    ):
        example = gallery.exhibits[0]
        show_queries(url, pictures / example.image_id, gallery.exhibits[1].image_id, console)
        if not once:
            console.print(f"\n{url} is the place to try more; the pictures are in {pictures}")
            console.print("Ctrl-C ends the server")
            threading.Event().wait()


def _free_port(wanted: int) -> int:
    """The wanted port, or a free one if that is taken or 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


app = typer.Typer(
    cls=HelpGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"likeness {importlib.metadata.version('likeness')}")
        raise typer.Exit


@app.callback()
def likeness(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Find images that look alike: embed a folder, bucket or list, index it, search it and serve it."""


_COMMANDS: dict[str, Callable[..., None]] = {
    "embed": embed,
    "reembed": reembed,
    "schedule": schedule,
    "history": history,
    "index": build_index,
    "search": search,
    "serve": serve,
    "rejects": rejects,
    "info": info,
    "duplicates": duplicates,
    "versions": versions,
    "promote": promote,
    "rollback": rollback,
    "prune": prune,
    "compact": compact,
    "demo": demo,
}
for _name, _command in _COMMANDS.items():
    app.command(_name, cls=HelpCommand)(_command)
app.add_typer(keys, name="keys")
