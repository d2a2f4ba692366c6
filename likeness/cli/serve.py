"""The commands `serve`, and `keys` for its API keys. `app` registers them."""

import os
import resource
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from jobs.errors import UsageError
from likeness.cli.model_options import Fields, with_fields
from likeness.cli.options import (
    SERVE_FLAGS,
    FormatOption,
    HelpCommand,
    HelpGroup,
    console,
    error_console,
    serve_settings,
    show,
)
from likeness.cli.tables.text_table import TextTable

if TYPE_CHECKING:
    from api.settings import ServeSettings

_SETTINGS = ("api.settings", "ServeSettings")
ClusterOption = Annotated[
    str | None, typer.Option(help="A Ray cluster: HOST:PORT or auto. By default Ray is started here.")
]
CollectionsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="COLLECTION...",
        help="Collections (folders or bucket prefixes), as LOCATION or NAME=LOCATION; or a folder of collections.",
    ),
]
KeysArgument = Annotated[Path, typer.Argument(envvar="LIKENESS_KEYS_FILE", help="The file of keys.")]
NameOption = Annotated[str, typer.Option(help="The key's owner, for logs and for `keys remove`.")]

_DEFAULT_FILE = Path("likeness-keys.json")
_OPEN_FILES = 65_536

keys = typer.Typer(
    cls=HelpGroup,
    no_args_is_help=True,
    help="Add, list and remove the API keys that a server requires.\n\n"
    "Example: `likeness keys add --name alice`, then `likeness serve my-collection --keys likeness-keys.json`",
)


@with_fields(
    Fields(
        *_SETTINGS,
        "host port model embedder precision replicas embedders shards searchers allowed_hosts keys_file allow_remote "
        "max_memory log_format",
        default=None,
        flags=SERVE_FLAGS,
    )
)
def serve(
    collections: CollectionsArgument,
    local: Annotated[bool, typer.Option("--local", help="Run in one process without Ray, as on a laptop.")] = False,
    address: ClusterOption = None,
    **options: Any,
) -> None:
    """Serve a search page and an HTTP API (`POST /search`), documented at `/docs`.

    With several collections, each one is under `/collections/NAME/`, and opened on its first request.

    Options that you omit come from the environment: `LIKENESS_PORT`, `LIKENESS_MAX_K` and so on.

    Example: `likeness serve my-collection --local`
    """
    for_ray = ("replicas", "embedders", "shards", "searchers")
    if local and (address is not None or any(options.get(name) is not None for name in for_ray)):
        raise UsageError(
            "--local is one process: --replicas, --embedders, --shards, --searchers and --address are for Ray Serve, "
            "without --local"
        )
    settings = serve_settings(
        collection=collections[0],
        more_collections=tuple(collections[1:]) or None,
        **options,
    )
    if options.get("searchers") is not None and settings.shards is None:
        raise UsageError("--searchers sets the replicas of each shard: expected --shards as well")
    _allow_many_connections()
    if local:
        from api.local import run_local

        run_local(settings, on_listening=_announce)
    else:
        _serve_on_ray(settings, address or os.environ.get("RAY_ADDRESS"))


def _serve_on_ray(settings: "ServeSettings", address: str | None) -> None:
    from api.deployment.application import run
    from api.deployment.proxy import environment, private_folder
    from api.local import listening
    from jobs.cluster.session import ray_cluster

    joined = address not in (None, "", "local")

    def connect() -> bool:
        if not joined:
            # Serve's proxies share a port with other listeners (SO_REUSEPORT), for example another Likeness.
            with listening(settings.host, settings.port):
                pass
            folder = cluster.enter_context(private_folder())
            for name, value in environment(settings, folder).items():
                os.environ.setdefault(name, value)
        # Ray counts the CPUs: those of a container may be fewer than the machine's.
        cluster.enter_context(ray_cluster(address if joined else None, verbose=False, num_cpus=None))
        return joined

    with ExitStack() as cluster:
        run(settings, connect=connect, on_listening=_announce)


def _allow_many_connections() -> None:
    """Each connection is an open file. Many systems allow 1,024 by default, which idle connections can use up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _OPEN_FILES)), hard))


def _announce(url: str) -> None:
    console.print(f"listening on {url} (documentation: {url}/docs), Ctrl-C ends it")


@keys.command(cls=HelpCommand)
def add(
    name: NameOption,
    file: KeysArgument = _DEFAULT_FILE,
    scope: Annotated[
        Literal["search", "admin"], typer.Option(help="`search`, or `admin`, which may also change index versions.")
    ] = "search",
    collections: Annotated[
        list[str] | None,
        typer.Option("--collection", help="Limit the key to the collection with this name; may be repeated."),
    ] = None,
) -> None:
    """Create a key and print it once: the file stores only its hash. Running servers accept it at once.

    Example: `likeness keys add --name alice --collection photos`
    """
    from api.access.keys import KeyScope, add_key
    from api.settings import REQUESTS_PER_MINUTE

    key = add_key(file, name, KeyScope(scope), collections or ())
    only = f", for {_comma_separated(collections)}" if collections else ""
    notice = f"{name}'s key, of scope {scope}{only}, in {file}. It is not shown again:"
    error_console.print(notice, soft_wrap=True, highlight=False)
    print(key, file=console.file)
    error_console.print(
        f"It may send {REQUESTS_PER_MINUTE} requests a minute, where each item of a batch counts as one; for a back "
        "end, set LIKENESS_RATE_LIMIT_PER_MINUTE on the server",
        soft_wrap=True,
        highlight=False,
    )


@keys.command("list", cls=HelpCommand)
def list_(file: KeysArgument = _DEFAULT_FILE, output: FormatOption = "table") -> None:
    """List the keys by name; the keys themselves are not stored.

    Example: `likeness keys list`
    """
    from api.access.keys import list_keys

    stored = list_keys(file)
    facts = [key.model_dump(mode="json", exclude={"hash"}) for key in stored]
    rows = [
        (key.name, key.scope, f"{key.created_at:%Y-%m-%d %H:%M} UTC", _comma_separated(key.collections or ["all"]))
        for key in stored
    ]
    show(output, facts, lambda: TextTable(("name", "scope", "made", "collections"), rows))


@keys.command(cls=HelpCommand)
def remove(name: NameOption, file: KeysArgument = _DEFAULT_FILE) -> None:
    """Remove a key. Running servers refuse it from the next request.

    Example: `likeness keys remove --name alice`
    """
    from api.access.keys import remove_key

    remove_key(file, name)
    console.print(f"{name}'s key is removed from {file}", soft_wrap=True, highlight=False)


def _comma_separated(collections: Iterable[str]) -> str:
    return ", ".join(sorted(collections))
