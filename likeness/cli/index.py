"""The commands about an index, from `index` to `prune`. `app` registers them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from index.errors import RecallTooLowError, RolledBackError
from jobs.errors import UsageError
from jobs.values import counted
from likeness.cli.model_options import Fields, model_of, with_fields
from likeness.cli.options import MODEL, CollectionArgument, FormatOption, console, model_loader, open_collection, show

if TYPE_CHECKING:
    from index.collection import Collection
    from jobs.embedding.model_source import Load
    from jobs.spec import Resources

AcceptLostRunsOption = Annotated[
    bool,
    typer.Option(
        "--accept-lost-runs", help="Continue without runs whose manifests are lost, and without their images."
    ),
]
_BUDGET = ("jobs.spec", "IndexBudget")
_BUDGET_FLAGS = {"latency_ms": "--latency"}
_WHERE = Fields("jobs.spec", "Resources", "on address")
VersionArgument = Annotated[str, typer.Argument(help="The version's number from `likeness versions`: 000002 or 2.")]


@with_fields(
    Fields(*_BUDGET, flags=_BUDGET_FLAGS),
    *MODEL,
    _WHERE,
)
def index(
    collection: CollectionArgument,
    promote: Annotated[bool, typer.Option(help="Make the new version live.")] = True,
    accept_lost_runs: AcceptLostRunsOption = False,
    **options: Any,
) -> None:
    """Bring a collection's index up to date, measure it, and make it live.

    Options that you omit keep their values from the live version. Changing any rebuilds the whole index.

    Example: `likeness index my-collection --max-memory 2GiB --target-recall 0.95`
    """
    from jobs.indexing.query_texts import read_queries
    from jobs.spec import IndexBudget, Resources

    budget = model_of(IndexBudget, options, _BUDGET_FLAGS)
    texts = read_queries(budget.queries) if budget.queries else []
    build_and_show(
        open_collection(collection),
        budget.changes(texts),
        resources=model_of(Resources, options),
        promote=promote,
        accept_lost_runs=accept_lost_runs,
        texts=texts,
        load=model_loader(options),
    )


@with_fields(*MODEL, _WHERE)
def compact(
    collection: CollectionArgument,
    accept_lost_runs: AcceptLostRunsOption = False,
    **options: Any,
) -> None:
    """Rebuild the index from all images, to merge small segments and drop deleted images.

    Example: `likeness compact my-collection`
    """
    from jobs.spec import Resources

    opened, resources, load = open_collection(collection), model_of(Resources, options), model_loader(options)
    build_and_show(opened, resources=resources, rebuild=True, accept_lost_runs=accept_lost_runs, load=load)


def build_and_show(
    collection: "Collection",
    changes: Mapping[str, Any] | None = None,
    *,
    resources: "Resources",
    promote: bool = True,
    rebuild: bool = False,
    accept_lost_runs: bool = False,
    texts: Sequence[str] = (),
    load: "Load | None" = None,
) -> None:
    """Build with the live version's settings and `changes`, and print the outcome; for a version that is refused, also
    the choice and the measurements. Segments are built on Ray if that is worthwhile, or if the resources say so.
    """
    from index.builder.build_index import build_index
    from index.collection import writing
    from index.collection.records.index_settings import IndexSettings
    from index.versions.servable import live_or_last_good_manifest
    from jobs.embedding.model_source import load_recorded
    from jobs.indexing.on_ray import run_on_ray
    from jobs.indexing.query_texts import QueryTexts
    from likeness.cli.tables.collection import choice_table
    from likeness.cli.tables.index import quality_table

    before = live_or_last_good_manifest(collection)
    settings = IndexSettings(**{**(before.settings.model_dump() if before else {}), **changes}) if changes else None
    try:
        # If the caller already holds the lease, it is kept.
        with writing(collection, "compact" if rebuild else "index") as leased, console.status("building the index"):
            manifest = build_index(
                leased,
                settings,
                promote=promote,
                rebuild=rebuild,
                accept_lost_runs=accept_lost_runs,
                run_jobs=run_on_ray(resources.address, console, resources.on),
                texts=QueryTexts(collection=leased, load=load or load_recorded, texts=texts),
            )
    except RolledBackError as error:
        console.print(f"[yellow]{escape(str(error))}", soft_wrap=True, highlight=False)
        return
    except RecallTooLowError:
        refused = collection.read_version(collection.versions()[-1])  # the newest
        console.print(choice_table(refused.choice), quality_table(refused))
        raise
    if before and manifest.version == before.version:
        console.print(f"index {manifest.version} already covers every row: {counted(manifest.ntotal, 'image')}")
        return
    recall = f"recall@10 {manifest.recall['10']:.4f}"
    end = f"{counted(manifest.ntotal, 'image')}, {manifest.kind}, {recall}, in {manifest.seconds:.1f} s"
    if promote:
        console.print(f"index {manifest.version} is live: {end}")
    else:
        command = escape(f"`likeness promote {collection.location} {manifest.version}`")
        console.print(f"index {manifest.version} is built but not live: {end}; {command} makes it live", soft_wrap=True)


def versions(collection: CollectionArgument, output: FormatOption = "table") -> None:
    """List a collection's index versions: which one is live, and the recall and speed of each.

    Example: `likeness versions my-collection`
    """
    from index.versions.promotion import list_versions
    from likeness.cli.tables.index import version_facts, versions_table

    facts = [version_facts(version) for version in list_versions(open_collection(collection))]
    show(output, facts, lambda: versions_table(facts))


def promote(collection: CollectionArgument, version: VersionArgument) -> None:
    """Make a version live, after verifying every byte of it.

    Example: `likeness promote my-collection 000002`
    """
    from index.versions import promotion

    opened = open_collection(collection)
    if not version.isdecimal():
        raise UsageError(f"expected a version's number, such as 000002 or 2, got {version!r}")
    version = version.zfill(6)
    with console.status(f"verifying {version}"):
        manifest = promotion.promote(opened, version)
    reached = manifest.recall["10"]
    if manifest.below_target:
        console.print(f"[yellow]it reaches {manifest.missed_message}", soft_wrap=True, highlight=False)
    console.print(f"index {version} is live: {counted(manifest.ntotal, 'image')}, recall@10 {reached:.4f}")


def rollback(collection: CollectionArgument) -> None:
    """Go back to the newest version before the live one that is intact and meets its target recall.

    Versions that were rolled back before are skipped, unless they were promoted since.

    Example: `likeness rollback my-collection`
    """
    from index.versions import promotion

    with console.status("verifying"):
        rolled_back = promotion.rollback(open_collection(collection))
    for reason in rolled_back.skipped.values():
        console.print(f"[yellow]skipped:[/yellow] {escape(reason)}", soft_wrap=True, highlight=False)
    live = rolled_back.manifest
    console.print(f"index {live.version} is live, in place of {rolled_back.before}: {counted(live.ntotal, 'image')}")


@with_fields(Fields("jobs.spec", "Retention", "keep"))
def prune(
    collection: CollectionArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    output: FormatOption = "table",
    **options: Any,
) -> None:
    """Remove old index versions, segments that only they used, and leftovers of unfinished jobs.

    It keeps the live version, newer ones, and unfinished runs that the next job will continue.

    Example: `likeness prune my-collection --keep 3 --dry-run`
    """
    from index.versions import prune
    from likeness.cli.tables.index import pruned_table

    pruned = prune.prune(open_collection(collection), options["keep"], dry_run=dry_run)
    show(output, {**asdict(pruned), "dry_run": dry_run}, lambda: pruned_table(pruned, dry_run=dry_run))
