"""A made-up plan of duplicates for a collection's images."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from index.analysis.duplicate_kinds import Kind
from index.analysis.duplicate_plan import Duplicate, DuplicatePlan, PlannedGroup, PlannedImage
from index.search import Searcher


def duplicate_plan_of(searcher: Searcher, *groups: tuple[str, str, Kind]) -> DuplicatePlan:
    """A plan with groups of one image to keep and one duplicate of a kind."""

    def facts(image_id: str) -> dict[str, Any]:
        row = searcher.row(image_id) or {}
        return {name: row[name] for name in PlannedImage.model_fields if name in row}

    found = tuple(
        PlannedGroup(
            keep=PlannedImage(**facts(keep)),
            duplicates=(Duplicate(**facts(other), kind=kind, why="more pixels", score=0.99),),
        )
        for keep, other, kind in groups
    )
    return DuplicatePlan(
        version=searcher.version,
        created_at=datetime(2026, 11, 23, tzinfo=UTC),
        looked_for=("cropped",),
        min_score=0.98,
        max_difference=0.06,
        groups=len(found),
        duplicates=Counter(kind for _, _, kind in groups),
        unread={},
        found=found,
    )
