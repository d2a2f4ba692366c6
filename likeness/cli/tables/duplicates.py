"""The plan of duplicates as a table for the terminal and as rows of CSV, with all its groups."""

from collections.abc import Iterator
from typing import Any, Final

from rich import filesize
from rich.console import Group

from index.analysis.duplicate_plan import DuplicatePlan, PlannedGroup, PlannedImage
from jobs.values import counted

_FACTS = ("image_id", "width", "height", "format", "size", "exif", "modified", "uri")


HEADER: Final = ("group", "", "image", "picture", "kept because of")


def plan_cells(plan: DuplicatePlan) -> Iterator[tuple[str, ...]]:
    """A line for each duplicate, below a line of the picture to keep, or of the best of similar ones."""
    for number, group in enumerate(plan.found, 1):
        yield str(number), _first_kind(group), group.keep.image_id, _facts(group.keep), ""
        for each in group.duplicates:
            yield "", each.kind, each.image_id, _facts(each), each.why


def plan_counts(plan: DuplicatePlan) -> Group:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in plan.duplicates.items())
    total = f"{counted(plan.groups, 'group')}: {kinds}" if plan.groups else "no duplicates"
    unread = ", ".join(f"{count:,} {reason}" for reason, count in plan.unread.items())
    more = [f"pictures that could not be read, and were not compared: {unread}"] if unread else []
    if plan.second_paths:
        more.append(f"links and other second paths of a file, which are not copies: {plan.second_paths:,}")
    return Group(total, *more)


def csv_rows(plan: DuplicatePlan) -> Iterator[list[Any]]:
    """The header, then a row for each image."""
    yield ["group", "kind", "kept_because_of", "difference", "score", *_FACTS]
    for number, group in enumerate(plan.found, 1):
        yield [number, _first_kind(group), "", "", "", *_columns(group.keep)]
        for each in group.duplicates:
            yield [number, each.kind, each.why, each.difference, each.score, *_columns(each)]


def _first_kind(group: PlannedGroup) -> str:
    return "best" if group.duplicates[0].kind == "similar" else "keep"


def _columns(image: PlannedImage) -> list[Any]:
    facts = image.model_dump(mode="json")
    return [facts[name] for name in _FACTS]


def _facts(image: PlannedImage) -> str:
    parts = (
        f"{image.width} × {image.height}" if image.width else None,
        image.format,
        filesize.decimal(image.size) if image.size is not None else None,
        "EXIF" if image.exif else None,
        f"{image.modified:%Y-%m-%d}" if image.modified else None,
    )
    return ", ".join(filter(None, parts))
