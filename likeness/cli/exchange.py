"""The commands `export` and `import`. `app` registers them."""

from typing import Annotated, Literal

import typer

from likeness.cli.embed import next_commands
from likeness.cli.index import build_and_show
from likeness.cli.job_options import RejectRateOption, RevisionOption, UriColumnOption
from likeness.cli.options import AddressOption, CollectionArgument, EmbedderOption, OnOption, console, open_collection
from jobs.values import MAX_REJECT_RATE, counted, model_named


def export(
    collection: CollectionArgument,
    folder: Annotated[str, typer.Argument(metavar="OUT", help="A new folder for the files.")],
    form: Annotated[
        Literal["parquet", "npy", "clip-retrieval"],
        typer.Option("--format", help="Parquet, a .npy array with Parquet beside it, or clip-retrieval's folders."),
    ] = "parquet",
) -> None:
    """Write a collection's vectors, with all columns, to files for other tools. `likeness import` can read them.

    Example: `likeness export my-collection vectors --format clip-retrieval`
    """
    from jobs.exchange.export import FILES, export

    with console.status("exporting") as status:
        opened = open_collection(collection)
        count = export(opened, folder, form, lambda done, total: status.update(f"{done:,} of {total:,} rows written"))
    names = " and ".join(name for name in FILES[form] if name)
    console.print(f"{counted(count, 'vector')} and all columns: {names} in {folder}", soft_wrap=True, markup=False)


def import_(
    source: Annotated[str, typer.Argument(help="A .npy file, Parquet with vectors, or a clip-retrieval folder.")],
    collection: CollectionArgument,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that made the vectors: hub id or folder. Without it, searches by picture or words fail."
        ),
    ] = None,
    revision: RevisionOption = None,
    embedder: EmbedderOption = None,
    ids: Annotated[str | None, typer.Option(help="A file of ids for a .npy file: .parquet, .npy or .txt.")] = None,
    embedding_column: Annotated[str | None, typer.Option(help="The column of vectors, if there are several.")] = None,
    uri_column: UriColumnOption = None,
    max_reject_rate: RejectRateOption = MAX_REJECT_RATE,
    index: Annotated[bool, typer.Option(help="Build the index at the end.")] = True,
    on: OnOption = None,
    address: AddressOption = None,
) -> None:
    """Add vectors made elsewhere to a collection, and index them. Either all are added or none.

    Unusable vectors become rejects with a reason, like pictures in `embed`.

    Example: `likeness import embeddings/ my-collection --model openai/clip-vit-base-patch32`
    """
    from likeness.cli.tables.job import embed_table
    from jobs.exchange.import_vectors import VectorImport

    with console.status("importing") as status:
        job = VectorImport(
            source=source,
            collection=collection,
            model=model and model_named(model),
            revision=revision,
            embedder=embedder,
            ids=ids,
            uri_column=uri_column,
            embedding_column=embedding_column,
            max_reject_rate=max_reject_rate,
            progress=lambda done, total: status.update(f"{done:,} of {total:,} rows imported"),
        )
        report = job.run()
    console.print(embed_table(report, done="imported"))
    if job.normalised:
        console.print(f"normalised, because not of unit norm: {counted(job.normalised, 'vector')}")
    if index:
        build_and_show(open_collection(collection), on=on, address=address)
        print(next_commands(collection, embedder), file=console.file)
