"""The commands `info`, `rejects`, `columns` and `evaluate`: what a collection holds. `app` registers them."""

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer

from jobs.errors import UsageError
from likeness.cli.options import CollectionArgument, FormatOption, console, open_collection, print_json_list, show


def info(collection: CollectionArgument, output: FormatOption = "table") -> None:
    """Show what a collection holds: images, rejects, model, index versions.

    Example: `likeness info my-collection`
    """
    from likeness.cli.tables.collection import collection_facts, facts_table

    facts = collection_facts(open_collection(collection))
    show(output, facts, lambda: facts_table(facts))


def rejects(
    collection: CollectionArgument,
    reason: Annotated[str | None, typer.Option(help="Only rejects with this reason, such as truncated.")] = None,
    output: FormatOption = "table",
) -> None:
    """List the images that could not be embedded, and why.

    Use --reason filtered to list the images that --keep left out.

    Example: `likeness rejects my-collection --reason truncated`
    """
    from index.collection.rows import FILTERED
    from jobs.planning.rejects import count_reasons, format_reasons, list_rejects
    from likeness.cli.tables.collection import REJECTS_HEADER, reject_cells
    from likeness.cli.tables.text_table import print_table

    catalog = open_collection(collection).snapshot().newest()
    counts = count_reasons(catalog)
    shown = Counter({name: counts[name] for name in counts if name == reason or (reason is None and name != FILTERED)})
    rows = list_rejects(catalog, shown)
    if output == "json":
        print_json_list(rows)
    elif shown:
        print_table(console, REJECTS_HEADER, map(reject_cells, rows))
        console.print(format_reasons(shown))
    elif counts and reason:
        line = f"no rejects for {reason!r}; there are these: {format_reasons(counts)}"
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    else:
        console.print("no rejects")


def columns(
    collection: CollectionArgument,
    drop: Annotated[str | None, typer.Option(help="Remove the annotation with this name.")] = None,
    output: FormatOption = "table",
) -> None:
    """List the columns added by `annotate`, or drop those of one annotation. `likeness info` lists all columns.

    Example: `likeness columns my-collection --drop animal`
    """
    from likeness.cli.tables.collection import annotation_facts, columns_table

    opened = open_collection(collection)
    if drop is not None:
        from index.collection import writing
        from jobs.annotation.publish import drop as drop_columns

        with writing(opened, "columns") as leased:
            drop_columns(leased, drop, console)
    facts = annotation_facts(opened)
    show(output, facts, lambda: columns_table(facts))


def evaluate(
    collection: CollectionArgument,
    by: Annotated[str, typer.Option(help="The column of labels, such as label.")],
    against: Annotated[
        str | None, typer.Option(help="Another collection, or a version of this one, to compare with.")
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="How many random images to use as queries.")] = 1000,
    suspects: Annotated[int, typer.Option(min=0, help="List this many images whose neighbours have other labels.")] = 0,
    output: FormatOption = "table",
) -> None:
    """Measure how well neighbours agree with your labels: precision and mean average precision for each label.

    It finds neighbours by an exact scan, so the figures judge the model; the recall of the index is shown next to them.

    Examples: `likeness evaluate my-collection --by label`,
    `likeness evaluate my-collection --by label --against other-collection --suspects 20`
    """
    import pyarrow.compute as pc

    from index.analysis.evaluation import LabelledImages, labels_of, sample_queries
    from index.analysis.evaluation import evaluate as figures_of
    from index.analysis.neighbourhoods import label_votes, neighbourhoods
    from index.search import Searcher
    from index.versions.servable import open_last_good
    from likeness.cli.tables.index import evaluation_tables

    opened = open_collection(collection)
    with console.status("comparing neighbours with labels"):
        searchers = [open_last_good(opened, Searcher.open)]
        if against is not None and against.isdecimal():
            if (version := against.zfill(6)) not in opened.versions():
                raise UsageError(f"--against is {against}: no such index version; `likeness versions` lists them")
            searchers.append(Searcher.open(opened, version))
        elif against is not None:
            searchers.append(open_last_good(open_collection(against), Searcher.open))
        sides = [LabelledImages.of(searcher, by) for searcher in searchers]
        queries = sample_queries(sides, sample)
        evaluations = [figures_of(side, queries) for side in sides]
        votes = []
        if suspects:
            all_labels = labels_of(searchers[0], searchers[0].segments.live_positions(), by).tolist()
            table = label_votes(neighbourhoods(searchers[0]), all_labels)
            votes = table.filter(pc.field("suggestion") != pc.field("label")).slice(0, suspects).to_pylist()
    facts = {"by": by, "evaluations": [asdict(each) for each in evaluations], "suspects": votes}
    show(output, facts, lambda: evaluation_tables(evaluations, votes))
