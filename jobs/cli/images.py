"""The commands about images: embed, rejects and info. `app` registers them.

Commands import what they need when they run: Ray and torch each take seconds that `--help` should not cost.
"""

import shlex
from collections import Counter
from typing import Annotated

import typer

from index.collection import Collection
from index.storage.bucket import without_secrets
from jobs.cli.job_tables import closing_lines, embed_table
from jobs.cli.options import (
    AcceleratorOption,
    ActorResourcesOption,
    ActorsOption,
    AddressOption,
    BatchSizeOption,
    BlockSizeOption,
    CollectionArgument,
    DeviceOption,
    DraftOption,
    ExtensionsOption,
    FormatOption,
    ModelOption,
    NumGpusOption,
    RejectRateOption,
    RevisionOption,
    VerboseOption,
    console,
    job_spec,
    show,
)
from jobs.embedding.report import Report


def embed(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="A folder or bucket prefix of images, a list, Parquet or tars.")],
    collection: CollectionArgument,
    model: ModelOption = None,
    revision: RevisionOption = None,
    device: DeviceOption = None,
    num_gpus: NumGpusOption = None,
    actors: ActorsOption = None,
    accelerator_type: AcceleratorOption = None,
    actor_resources: ActorResourcesOption = None,
    batch_size: BatchSizeOption = 64,
    block_size: BlockSizeOption = 256,
    max_reject_rate: RejectRateOption = 0.05,
    extensions: ExtensionsOption = None,
    draft: DraftOption = True,
    index: Annotated[bool, typer.Option(help="Build the index at the end.")] = True,
    address: AddressOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Embed images into a collection, and index it. Run it again to continue after a crash, or to add new images.

    Example: `likeness embed photos/ my-collection --model demo`
    """
    from jobs.update import Update

    # Rows of another source with the same ids are replaced, with a warning.
    spec = job_spec(context, missing="keep", max_missing=1)
    show_embedded(Update(spec=spec, console=console, adds_only=True, index=index, verbose=verbose).run())
    if index:
        print(next_commands(collection))


def show_embedded(report: Report) -> None:
    """The closing table of `embed`, and a line about the index."""
    for embedding in report.embedding:
        console.print(embed_table(embedding))
    for line in closing_lines(report):
        console.print(line, soft_wrap=True)


def next_commands(collection: str) -> str:
    """What one does with a collection that has just been made."""
    name = shlex.quote(without_secrets(collection))
    return f"Search it with `likeness search {name} PICTURE`, or serve it with `likeness serve {name} --local`"


def rejects(
    collection: CollectionArgument,
    reason: Annotated[str | None, typer.Option(help="Only these, such as truncated.")] = None,
    output: FormatOption = "table",
) -> None:
    """List the images that could not be embedded, with the reason of each.

    Example: `likeness rejects my-collection --reason truncated`
    """
    from jobs.cli.tables import rejects_table
    from jobs.planning.rejects import list_rejects, shown_reasons

    rejected = list_rejects(Collection.open(collection))
    rows = rejected if reason is None else [row for row in rejected if row["error_reason"] == reason]
    if rejected and not rows and output == "table":
        there = shown_reasons(Counter(str(row["error_reason"]) for row in rejected))
        console.print(f"none for {reason!r}; there are: {there}", soft_wrap=True, markup=False, highlight=False)
    else:
        show(output, rows, lambda: rejects_table(rows))


def info(collection: CollectionArgument, output: FormatOption = "table") -> None:
    """Show what a collection holds: images, rejects, model, index versions.

    Example: `likeness info my-collection`
    """
    from jobs.cli.tables import collection_facts, facts_table

    facts = collection_facts(Collection.open(collection))
    show(output, facts, lambda: facts_table(facts))
