"""The commands `rejects` and `info`, which show what a collection holds. `app` registers them."""

from collections import Counter
from typing import Annotated

import typer

from index.collection import Collection
from jobs.cli.options import CollectionArgument, FormatOption, console, show


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
