"""The plan of a collection's duplicates: which of each group to keep. The command writes it, the server shows it.

A file of lines, each a JSON document: what was looked for, then the groups. So one page of many groups is read alone.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal, Self, get_args

from pydantic import BaseModel, ValidationError

from index.collection import Collection
from index.collection.layout import DUPLICATES
from index.errors import CollectionError

Kind = Literal["identical_bytes", "identical_pixels", "re_encoded", "cropped", "similar"]
"""How a picture agrees with the one that is kept, the strongest first. `re_encoded` ones may be resized too."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class PlannedImage(BaseModel):
    """An image and what was judged. `exif` is None if its file was not read, `uri` where locations are not told."""

    image_id: str
    uri: str | None
    content_hash: str | None
    width: int | None
    height: int | None
    format: str | None
    size: int | None
    modified: datetime | None
    exif: bool | None = None


class Duplicate(PlannedImage):
    """A picture that the kept one makes redundant; a similar one only shows the like.

    `difference` of the pixels is 0 … 1. `score` is the cosine of a similar picture with the nearest of its group.
    """

    kind: Kind
    why: str
    difference: float | None = None
    score: float | None = None


class PlannedGroup(BaseModel):
    keep: PlannedImage
    duplicates: tuple[Duplicate, ...]

    def without_locations(self) -> Self:
        hidden = {"uri": None}
        duplicates = tuple(each.model_copy(update=hidden) for each in self.duplicates)
        return self.model_copy(update={"keep": self.keep.model_copy(update=hidden), "duplicates": duplicates})


class PlanSummary(BaseModel):
    """What was looked for in which index version, and how much was found. `unread` has reasons with their counts."""

    version: str
    created_at: datetime
    looked_for: tuple[Kind, ...]
    min_score: float
    max_difference: float
    groups: int
    duplicates: dict[Kind, int]
    unread: dict[str, int]


class DuplicatePlan(PlanSummary):
    found: tuple[PlannedGroup, ...]


def count_kinds(groups: Iterable[PlannedGroup]) -> dict[Kind, int]:
    """How many duplicates there are of each kind that occurs."""
    counts = Counter(duplicate.kind for group in groups for duplicate in group.duplicates)
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


def write_plan(collection: Collection, plan: DuplicatePlan) -> None:
    """Replace the collection's plan."""
    lines = [plan.model_dump_json(exclude={"found"}), *(group.model_dump_json() for group in plan.found)]
    collection.storage.write_atomic(DUPLICATES, "\n".join(lines).encode())


def read_plan(collection: Collection, offset: int, limit: int) -> tuple[PlanSummary, list[PlannedGroup]] | None:
    """The plan with `limit` of its groups after the first `offset`, or None if there is none.

    CollectionError when its file is damaged.
    """
    try:
        first, *groups = collection.storage.read(DUPLICATES).splitlines()
        page = [PlannedGroup.model_validate_json(group) for group in groups[offset : offset + limit]]
        return PlanSummary.model_validate_json(first), page
    except FileNotFoundError:
        return None
    except (ValidationError, ValueError) as error:
        path = f"{collection.location}/{DUPLICATES}"
        raise CollectionError(f"{path} is damaged: run `likeness duplicates` to write it again") from error
