"""The commands `export` and `import`. `app` registers them."""

from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from jobs.values import counted, noted, parse_object
from likeness.cli.embed import next_commands
from likeness.cli.index import build_and_show
from likeness.cli.model_options import Fields, model_of, with_fields
from likeness.cli.options import CollectionArgument, console, open_collection, parse_option


def export(
    collection: CollectionArgument,
    folder: Annotated[str, typer.Argument(metavar="OUT", help="A new folder for the files.")],
    form: Annotated[
        Literal["parquet", "npy", "clip-retrieval"],
        typer.Option("--format", help="Parquet, a .npy array with Parquet beside it, or clip-retrieval's folders."),
    ] = "parquet",
    where: Annotated[
        str | None, typer.Option("--filter", help="Only images that pass this filter, as in `likeness search`.")
    ] = None,
) -> None:
    """Write a collection's vectors, with all columns, to files for other tools. `likeness import` can read them.

    Examples: `likeness export my-collection vectors --format clip-retrieval`,
    `likeness export my-collection picks --filter '{"pick": {"$gt": 0}}'`
    """
    from jobs.exchange.export import FILES, export

    passing = None
    if where is not None:
        passing = parse_option("--filter", where, lambda text: parse_object(text, '{"pick": {"$gt": 0}}'))
    with console.status("exporting") as status:
        opened = open_collection(collection)
        count = export(
            opened,
            folder,
            form,
            lambda done, total: status.update(f"{done:,} of {total:,} rows written"),
            where=passing,
        )
    names = " and ".join(name for name in FILES[form] if name)
    console.print(f"{counted(count, 'vector')} and all columns: {names} in {folder}", soft_wrap=True, markup=False)


@with_fields(
    Fields("jobs.spec", "JobSpec", "revision embedder uri_column max_reject_rate"),
    Fields("jobs.spec", "Resources", "on address"),
)
def import_(
    source: Annotated[str, typer.Argument(help="A .npy file, Parquet with vectors, or a clip-retrieval folder.")],
    collection: CollectionArgument,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that made the vectors: hub id or folder. Without it, searches by picture or words fail."
        ),
    ] = None,
    ids: Annotated[str | None, typer.Option(help="A file of ids for a .npy file: .parquet, .npy or .txt.")] = None,
    embedding_column: Annotated[str | None, typer.Option(help="The column of vectors, if there are several.")] = None,
    index: Annotated[bool, typer.Option(help="Build the index at the end.")] = True,
    **options: Any,
) -> None:
    """Add vectors made elsewhere to a collection, and index them. Either all are added or none.

    Unusable vectors become rejects with a reason, like pictures in `embed`.

    Example: `likeness import embeddings/ my-collection --model openai/clip-vit-base-patch32`
    """
    from jobs.exchange.import_vectors import VectorImport
    from jobs.spec import Resources
    from likeness.cli.tables.job import embed_table

    resources = model_of(Resources, options)
    with console.status("importing") as status:
        job = VectorImport(
            source=source,
            collection=collection,
            model=model,
            revision=options["revision"],
            embedder=options["embedder"],
            ids=ids,
            uri_column=options["uri_column"],
            embedding_column=embedding_column,
            max_reject_rate=options["max_reject_rate"],
            progress=lambda done, total: status.update(f"{done:,} of {total:,} rows imported"),
        )
        report = job.run()
    for note, files in job.notes.items():
        console.print(f"[yellow]{escape(noted(note, files))}", soft_wrap=True, highlight=False)
    console.print(embed_table(report, done="imported"))
    if job.normalised:
        console.print(f"normalised, because not of unit norm: {counted(job.normalised, 'vector')}")
    if index:
        build_and_show(open_collection(collection), resources=resources)
        print(next_commands(collection, options["embedder"]), file=console.file)
