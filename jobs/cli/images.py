"""The commands about images: embed, rejects and info. `app` registers them.

Commands import what they need when they run: Ray and torch each take seconds that `--help` should not cost.
"""

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from index.collection import Collection
from index.storage.bucket import without_secrets
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
    OutputFormat,
    RejectRateOption,
    RevisionOption,
    console,
    print_json,
)
from jobs.values import DEFAULT_MODEL, model_named, parse_actors, parse_extensions, parse_resources

if TYPE_CHECKING:
    from jobs.embedding.update_report import ReembedReport


def embed(
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
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what Ray and its workers print.")] = False,
) -> None:
    """Embed images into a collection, and index it. Run it again to continue after a crash, or to add new images.

    Example: `likeness embed photos/ my-collection --model demo`
    """
    from jobs.embedding.request import EmbedOptions
    from jobs.update import ReembedSettings, reembed

    settings = ReembedSettings(
        command="embed",
        source=source,
        collection=collection,
        model=None if model is None else model_named(model),
        default_model=DEFAULT_MODEL,
        revision=revision,
        device=device,
        batch_size=batch_size,
        options=EmbedOptions(block_size=block_size, max_reject_rate=max_reject_rate, draft=draft),
        extensions=parse_extensions(extensions),
        num_gpus=num_gpus,
        actors=parse_actors(actors),
        accelerator_type=accelerator_type,
        actor_resources=parse_resources(actor_resources),
        address=address,
        verbose=verbose,
        index={} if index else None,
        missing="keep",
        max_missing=1,  # another source's rows with the same ids are replaced, with a warning
        other_model="refuse",
    )
    show_embedded(reembed(settings, console))
    if index:
        print(next_commands(collection))


def show_embedded(report: "ReembedReport") -> None:
    """The closing table of `embed`, and a line about the index."""
    from jobs.embedding.report import embed_table
    from jobs.embedding.update_report import closing_lines

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
    output: FormatOption = OutputFormat.table,
) -> None:
    """List the images that could not be embedded, with the reason of each.

    Example: `likeness rejects my-collection --reason truncated`
    """
    from jobs.cli.tables import list_rejects, reject_counts, rejects_table

    rejected = list_rejects(Collection.open(collection))
    rows = rejected if reason is None else [row for row in rejected if row["error_reason"] == reason]
    if output is OutputFormat.json:
        print_json(rows)
    elif rejected and not rows:
        there = f"none for {reason!r}; there are: {reject_counts(rejected)}"
        console.print(there, soft_wrap=True, markup=False, highlight=False)
    else:
        console.print(rejects_table(rows))


def info(collection: CollectionArgument, output: FormatOption = OutputFormat.table) -> None:
    """Show what a collection holds: images, rejects, model, index versions.

    Example: `likeness info my-collection`
    """
    from jobs.cli.tables import collection_facts, facts_table

    facts = collection_facts(Collection.open(collection))
    if output is OutputFormat.json:
        print_json(facts)
    else:
        console.print(facts_table(facts))
