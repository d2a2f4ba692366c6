"""`likeness`: the command line, and the one place where jobs, index and api are put together.

Commands import what they need when they run: FastAPI, Ray and torch each take seconds that `--help` should not cost.
"""

import json
import socket
import sys
import threading
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape

from api.errors import ApiError
from embedder.errors import EmbedderError
from index.collection import Collection
from index.errors import CollectionError
from jobs.errors import JobError, TooManyRejectsError
from jobs.listing import IMAGE_EXTENSIONS

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Find images that look alike: embed a folder, bucket or list, index it, search it and serve it.",
)
console = Console()
errors = Console(stderr=True)

DEFAULT_MODEL = "openai/clip-vit-base-patch32"
DEMO_MODEL = Path(__file__).parent / "demo" / "model"

CollectionArgument = Annotated[str, typer.Argument(help="The collection: a folder or bucket prefix.")]
ModelOption = Annotated[
    str,
    typer.Option(help="A CLIP-family model: hub id or folder. `demo` is the small one that comes with Likeness."),
]
MovedModelOption = Annotated[str | None, typer.Option(help="Where the model is, if it has moved.")]


def main() -> None:
    """Run the command line. A mistake is one line on stderr and exit code 2; a failed job exits with 1."""
    try:
        app()
    except KeyboardInterrupt:
        errors.print("[yellow]interrupted[/yellow]")
        sys.exit(130)
    except TooManyRejectsError as error:
        _fail(error, 1)
    except (JobError, CollectionError, EmbedderError, ApiError) as error:
        _fail(error, 2)
    except ValidationError as error:
        _fail(_settings_message(error), 2)


def _fail(error: object, code: int) -> None:
    line = " ".join(str(error).split())
    errors.print(f"[bold red]error:[/bold red] {escape(line)}", soft_wrap=True, highlight=False)
    sys.exit(code)


def _settings_message(error: ValidationError) -> str:
    """Options are checked by typer, so what is wrong here came from the environment."""
    wrong = [(".".join(map(str, e["loc"])), e["msg"], e["input"]) for e in error.errors()]
    return "; ".join(f"LIKENESS_{name.upper()}: {message}, got {value!r}" for name, message, value in wrong)


@app.command()
def embed(
    source: Annotated[str, typer.Argument(help="A folder or bucket prefix of images, a list, Parquet or tars.")],
    collection: CollectionArgument,
    model: ModelOption = DEFAULT_MODEL,
    revision: Annotated[str | None, typer.Option(help="The model's branch, tag or commit on the hub.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda, cpu, …; by default a GPU where there is one.")] = None,
    num_gpus: Annotated[float | None, typer.Option(min=0, help="GPUs for each actor; may be a fraction.")] = None,
    actors: Annotated[str | None, typer.Option(help="Embedding actors: a number, or LEAST:MOST.")] = None,
    accelerator_type: Annotated[str | None, typer.Option(help="Kind of GPU, as Ray names it: A100, H200, …")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a forward pass.")] = 64,
    block_size: Annotated[int, typer.Option(min=1, help="Images written together: what a crash can cost.")] = 256,
    max_reject_rate: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the images that may be rejected before the run fails."),
    ] = 0.05,
    extensions: Annotated[str | None, typer.Option(help="File extensions to take, with commas: jpg,png.")] = None,
    draft: Annotated[bool, typer.Option(help="Decode large JPEGs at reduced scale, many times faster.")] = True,
    index: Annotated[bool, typer.Option(help="Build the index at the end.")] = True,
    address: Annotated[
        str | None, typer.Option(help="A Ray cluster's address; by default one is started here.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what Ray and its workers print.")] = False,
) -> None:
    """Embed images into a collection, and index it. Run it again to go on after a crash, or to add what is new.

    Example: `likeness embed photos/ my-collection --model demo`
    """
    from jobs.run import EmbedRequest, run_embed

    run_embed(
        EmbedRequest(
            source=source,
            collection=collection,
            model=_model(model),
            revision=revision,
            device=device,
            num_gpus=num_gpus,
            actors=_actors(actors),
            accelerator_type=accelerator_type,
            batch_size=batch_size,
            block_size=block_size,
            max_reject_rate=max_reject_rate,
            extensions=_extensions(extensions),
            draft=draft,
            address=address,
            verbose=verbose,
        ),
        console,
    )
    if index:
        _build(Collection.open(collection))


@app.command("index")
def index_command(collection: CollectionArgument) -> None:
    """Build the index of a collection from its embeddings, check it, and make it the live one.

    Example: `likeness index my-collection`
    """
    _build(Collection.open(collection))


def _build(collection: Collection) -> None:
    from index.build import build_index

    before = collection.current()
    manifest = build_index(collection)
    if manifest.version == before:
        console.print(f"index {manifest.version} already covers every row: {manifest.ntotal:,} images")
    else:
        console.print(f"index {manifest.version} is live: {manifest.ntotal:,} images, in {manifest.seconds:.1f} s")


class OutputFormat(StrEnum):
    table = "table"
    json = "json"


FormatOption = Annotated[OutputFormat, typer.Option("--format", help="For people or for programs.")]


@app.command()
def search(
    collection: CollectionArgument,
    query: Annotated[str | None, typer.Argument(help="A picture: path or URL.")] = None,
    text: Annotated[str | None, typer.Option(help="Words instead of a picture.")] = None,
    k: Annotated[int, typer.Option("-k", help="How many matches.")] = 10,
    model: MovedModelOption = None,
    output: FormatOption = OutputFormat.table,
) -> None:
    """Find the images most like a picture, or like words. No server is needed.

    Examples: `likeness search my-collection cat.jpg`, `likeness search my-collection --text "a red star"`
    """
    from api.compose import build_service
    from api.schemas import plain
    from api.settings import ServeSettings
    from embedder.fetch import FetchPolicy
    from index.search import MAX_K
    from jobs.show import match_table

    if (query is None) == (text is None):
        raise typer.BadParameter("expected a picture or --text, and not both")
    if not 1 <= k <= MAX_K:
        raise typer.BadParameter(f"expected 1 to {MAX_K:,}, got {k}", param_hint="-k")
    with console.status("loading the index and the model"):
        # What is typed on one's own command line may name local files and private hosts.
        settings = ServeSettings(collection=collection, model=_model(model) if model else None)
        service = build_service(settings, query_policy=FetchPolicy())
    result = service.search_by_url(query, k) if query is not None else service.search_by_text(str(text), k)
    if output is OutputFormat.json:
        print(json.dumps([plain(asdict(match)) for match in result.matches], indent=2))
    else:
        console.print(match_table(result.matches))


@app.command()
def serve(
    collection: CollectionArgument,
    local: Annotated[bool, typer.Option("--local", help="One process without Ray, for a laptop.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    model: MovedModelOption = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A host, or host:port, that queries may name though it is private."),
    ] = None,
    allow_remote: Annotated[bool, typer.Option(help="Listen beyond this machine; there are no keys yet.")] = False,
) -> None:
    """Answer searches over HTTP: `POST /search` with an image's URL. Documentation is served at `/docs`.

    Example: `likeness serve my-collection --local`
    """
    from api.settings import ServeSettings

    settings = ServeSettings(
        collection=collection,
        model=_model(model) if model else None,
        host=host,
        port=port,
        allowed_hosts=frozenset(allow_host or ()),
        allow_remote=allow_remote,
    )
    if local:
        from api.local import run_local

        run_local(settings, on_listening=_announce)
    else:
        from api.deployment import run

        _announce(run(settings, blocking=False))
        threading.Event().wait()


def _announce(url: str) -> None:
    console.print(f"listening on {url} (documentation: {url}/docs), Ctrl-C ends it")


@app.command()
def rejects(
    collection: CollectionArgument,
    reason: Annotated[str | None, typer.Option(help="Only these, such as truncated.")] = None,
    output: FormatOption = OutputFormat.table,
) -> None:
    """List the images that could not be embedded, with the reason of each.

    Example: `likeness rejects my-collection --reason truncated`
    """
    from jobs.show import list_rejects, rejects_table

    rows = list_rejects(Collection.open(collection), reason)
    if output is OutputFormat.json:
        print(json.dumps(rows, indent=2, default=str))
    else:
        console.print(rejects_table(rows))


@app.command()
def info(collection: CollectionArgument, output: FormatOption = OutputFormat.table) -> None:
    """Show what a collection holds: images, rejects, model, index versions.

    Example: `likeness info my-collection`
    """
    from jobs.show import collection_facts, facts_table

    facts = collection_facts(Collection.open(collection))
    if output is OutputFormat.json:
        print(json.dumps(facts, indent=2, default=str))
    else:
        console.print(facts_table(facts))


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the gallery and its collection go.")] = Path("demo-data"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    once: Annotated[bool, typer.Option("--once", help="End after the first answers.")] = False,
) -> None:
    """Draw 2,000 pictures, embed and index them, search by picture, URL and words, and serve the result.

    Example: `likeness demo --once`
    """
    from api.app import create_app
    from api.compose import build_service
    from api.local import running
    from api.settings import ServeSettings
    from jobs.demo.gallery import make_gallery
    from jobs.demo.tour import show_queries
    from jobs.run import EmbedRequest, run_embed

    pictures, collection = folder / "pictures", folder / "collection"
    with console.status(f"drawing 2,000 pictures into {pictures}"):
        gallery = make_gallery(pictures)
    run_embed(EmbedRequest(source=str(pictures), collection=str(collection), model=str(DEMO_MODEL)), console)
    _build(Collection.open(str(collection)))
    port = _free_port(port)
    # The tour's URL query names this very server.
    settings = ServeSettings(collection=str(collection), port=port, allowed_hosts=frozenset({f"127.0.0.1:{port}"}))
    with running(create_app(build_service(settings), limits=settings.limits()), port=port) as url:
        example = gallery.exhibits[0]
        show_queries(url, pictures / example.image_id, gallery.exhibits[1].image_id, console)
        console.print(f"\n{url}/docs is the place to try more; the pictures are in {pictures}")
        if not once:
            console.print("Ctrl-C ends the server")
            threading.Event().wait()


def _free_port(wanted: int) -> int:
    """The wanted port, or another where that one is taken or 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _model(name: str) -> str:
    return str(DEMO_MODEL) if name == "demo" else name


def _actors(text: str | None) -> tuple[int, int] | None:
    """`4` or `2:8`."""
    if text is None:
        return None
    least, _, most = text.partition(":")
    try:
        pair = int(least), int(most or least)
    except ValueError:
        pair = (0, 0)
    if not 1 <= pair[0] <= pair[1]:
        raise typer.BadParameter(f"expected a number or LEAST:MOST, got {text!r}", param_hint="--actors")
    return pair


def _extensions(text: str | None) -> tuple[str, ...]:
    if text is None:
        return IMAGE_EXTENSIONS
    return tuple(part.strip().lower().lstrip(".") for part in text.split(",") if part.strip())


if __name__ == "__main__":
    main()
