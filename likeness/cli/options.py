"""Shared by the commands: the terminal, common options and those of jobs, and what they print."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer
from rich.console import Console, RenderableType
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command_from_info
from typer.models import CommandInfo

from jobs.errors import UsageError
from likeness.cli.model_options import Fields, fields_of, has_fields, model_of, problem_of, with_all_options

if TYPE_CHECKING:
    from api.settings import ServeSettings
    from index.collection import Collection
    from jobs.embedding.model_source import Load
    from jobs.spec import JobSpec

T = TypeVar("T")

MODEL: Final = (Fields("api.settings", "ServeSettings", "model"), Fields("jobs.spec", "JobSpec", "embedder"))
"""Options of commands that need the model of a collection, which may have moved, or be the user's own class."""


def model_loader(options: Mapping[str, Any], **more: Any) -> "Load":
    """Loads a collection's model as the options `MODEL` say; `more` is for `load_recorded`."""
    from jobs.embedding.model_source import load_recorded

    return partial(load_recorded, model=options["model"], embedder=options["embedder"], **more)


def _console(*, stderr: bool) -> Console:
    """A console that ignores FORCE_COLOR, which notebooks set: progress bars would be drawn into pipes."""
    file = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, force_terminal=None if file and file.isatty() else False)


console = _console(stderr=False)
error_console = _console(stderr=True)


@contextmanager
def _reserved_stdout() -> Iterator[None]:
    """Leaves stdout to `console`: what users' classes, libraries and other processes print goes to stderr."""
    original, errors = sys.stdout, sys.stderr
    with ExitStack() as stack:
        if original is not None and errors is not None and (original, errors) == (sys.__stdout__, sys.__stderr__):
            original.flush()
            copy = os.fdopen(os.dup(1), "w", encoding=original.encoding, errors=original.errors)
            console.file = stack.enter_context(copy)
            os.dup2(2, 1)
            stack.callback(os.dup2, copy.fileno(), 1)
        else:
            console.file = original
        stack.enter_context(redirect_stdout(errors))
        stack.callback(setattr, console, "file", None)  # the current sys.stdout
        yield


def _typeless_flags(params: list[Any]) -> list[Any]:
    """Show flags without a type: typer shows `<bool>`, as if they took a value."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag:
            param.metavar = ""
    return params


class HelpCommand(TyperCommand):
    """A command with plain help, whose stdout has what the command prints alone; for `app.command(cls=…)`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        texts: Mapping[str, Any] = {}
        if not ctx.resilient_parsing:  # completing a half-written command
            texts, _, occurring = self.make_parser(ctx).parse_args(list(args))  # a copy, as parsing empties its list
            self._refuse_repeated(occurring)
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if error.param is None or not isinstance(error.__cause__, ValueError):
                raise
            [problem, *_] = error.__cause__.errors()  # type: ignore[attr-defined]  # pydantic's, which is imported late
            raise UsageError(problem_of(error.param.opts[0], problem)) from error
        self._refuse_addresses(ctx, texts)
        return rest

    def _refuse_repeated(self, occurring: Iterable[Any]) -> None:
        """Raises UsageError for an option with one value that is there more than once: only the last would count."""
        for param, times in Counter(occurring).items():
            if times > 1 and isinstance(param, TyperOption) and not (param.multiple or param.is_flag):
                raise UsageError(
                    f"{param.opts[0]} is there {times} times: expected it once. Name one value, or combine them: "
                    "conditions of a filter with $and, names of a list with commas"
                )

    def _refuse_addresses(self, ctx: Any, texts: Mapping[str, Any]) -> None:
        """Raises UsageError for an address in place of a path: `Path` would make a folder `s3:` of it."""
        for param in self.params:
            value, text = ctx.params.get(param.name), texts.get(param.name)
            paths, given = (value, text) if isinstance(value, list) else ([value], [text])
            for path, address in zip(paths, given or [], strict=False):
                if isinstance(path, Path) and address and "://" in address:
                    from index.storage.bucket_address import without_secrets  # imports pyarrow, which is slow

                    name = param.opts[0] if isinstance(param, TyperOption) else str(param.name).upper()
                    problem = "expected a path on this machine, not an address"
                    raise UsageError(f"{name} is {without_secrets(address)}: {problem}")

    def invoke(self, ctx: Any) -> Any:
        with _reserved_stdout():
            return super().invoke(ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        return _typeless_flags(super().get_params(ctx))


class HelpGroup(TyperGroup):
    """A group of commands with plain help; for `Typer(cls=…)`."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _typeless_flags(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was called, with options of models too, which other commands do without."""
        name, command, rest = super().resolve_command(ctx, args)
        own = command and getattr(command.callback, "__wrapped__", None)
        if own and has_fields(own):
            info = CommandInfo(name, cls=HelpCommand, callback=with_all_options(own))
            command = get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode="markdown")
        return name, command, rest


def open_collection(location: str) -> "Collection":
    """`Collection.open`, imported late: importing pyarrow takes longer than the rest of `--help`."""
    from index.collection import Collection

    return Collection.open(location)


CollectionArgument = Annotated[str, typer.Argument(help="The collection: a folder or bucket prefix.")]
FormatOption = Annotated[
    Literal["table", "json"], typer.Option("--format", help="A table for people, or JSON for programs.")
]


def show(output: str, facts: Any, table: Callable[[], RenderableType]) -> None:
    """Print the facts as JSON, with letters beyond ASCII unescaped, or as a table."""
    if output == "json":
        print(json.dumps(facts, indent=2, ensure_ascii=False, default=str), file=console.file)
    else:
        console.print(table())


def print_json_list(items: Iterable[object], indent: str = "") -> None:
    """Print what `show` prints for a list of these, as they come; within an object, with its `indent`."""
    separator = "["
    for item in items:
        lines = ["", *json.dumps(item, indent=2, ensure_ascii=False, default=str).split("\n")]
        print(separator, f"\n{indent}  ".join(lines), sep="", end="", file=console.file)
        separator = ","
    print("[]" if separator == "[" else f"\n{indent}]", file=console.file)


def parse_option(option: str, text: str, parse: Callable[[str], T]) -> T:
    """The value of an option. UsageError names the option."""
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option} {error}") from error


SERVE_FLAGS = {"keys_file": "--keys", "allowed_hosts": "--allow-host", "allow_remote": "--allow-remote"}


def serve_settings(**options: Any) -> "ServeSettings":
    """The settings from these options, and the rest from the environment. UsageError names each invalid one."""
    from api.settings import ServeSettings

    variables = {name: f"LIKENESS_{name.upper()}" for name in ServeSettings.model_fields if options.get(name) is None}
    return model_of(ServeSettings, options, {**SERVE_FLAGS, **variables})


_JOB, _RESOURCES, _BUDGET = (("jobs.spec", name) for name in ("JobSpec", "Resources", "IndexBudget"))

MISSING = Fields(*_JOB, "missing max_missing")
"""What happens to images that are gone, for commands that look for them."""
_OVERRIDING = {"max_missing"}  # the job's file
COMPARING = Fields(*_JOB, "verify_hash")
_ARGUMENTS, _IN_A_FILE = "source collection", "resources index retention annotations searches notify metrics_file"
_OF_SOME_COMMANDS = "missing max_missing verify_hash max_reject_rate"
EMBEDDING = (
    Fields(
        *_JOB,
        but=f"{_ARGUMENTS} {_IN_A_FILE} {_OF_SOME_COMMANDS}",
        metavars={"column_types": "COLUMN=TYPE,…", "tiles": "CxR"},
    ),
    Fields(*_RESOURCES, "device precision"),
)
"""What is embedded, and with which model."""
CLUSTER = (
    Fields(*_RESOURCES, but="device precision"),
    Fields(*_JOB, "max_reject_rate"),
    Fields(*_BUDGET, "queries"),
)
"""How a job runs."""
OptionalSource = Annotated[str | None, typer.Argument(help="The source of the collection's images.")]
OptionalCollection = Annotated[str | None, typer.Argument(help="The collection: a folder or bucket prefix.")]
SpecOption = Annotated[Path | None, typer.Option(help="Read all options from a file such as deploy/job.yaml.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show the output of Ray and its workers.")]


def job_spec(context: typer.Context, **more: Any) -> "JobSpec":
    """The job that a command's options describe; `more` are further fields. UsageError names the invalid ones."""
    from jobs.spec import IndexBudget, JobSpec, Resources

    options = {**context.params, **more}
    sections = {"resources": fields_of(Resources, options), "index": fields_of(IndexBudget, options)}
    return model_of(JobSpec, {**options, **sections})


def job_or_file(context: typer.Context, beside: set[str]) -> "JobSpec":
    """The job of the file --spec, with which only what overrides it and the options `beside` it go; or `job_spec`."""
    from jobs.schedule.spec_file import read_spec

    if (path := context.params["spec"]) is None:
        if context.params["source"] is None or context.params["collection"] is None:
            raise UsageError("expected SOURCE and COLLECTION, or --spec FILE")
        return job_spec(context)
    job = read_spec(path)
    sources = {name: context.get_parameter_source(name) for name in context.params}
    used = {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    if wrong := sorted(used - beside - _OVERRIDING - {"spec"}):
        names = ", ".join(name if name in ("source", "collection") else f"--{name.replace('_', '-')}" for name in wrong)
        raise UsageError(f"{names} cannot be combined with --spec, whose file describes the whole job: set it there")
    return job.model_copy(update={name: context.params[name] for name in used & _OVERRIDING})
