"""The plan of a collection's duplicates: which image of each group to keep. A command writes it, the server shows it.

It is a file of JSON lines: a summary, then the groups, so that a page of groups can be read alone.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal, Self, get_args

from pydantic import BaseModel

from index.collection import Collection
from index.collection.bounds import parse_json
from index.collection.layout import DUPLICATES
from index.errors import CollectionError

Kind = Literal["identical_bytes", "identical_pixels", "re_encoded", "cropped", "similar"]
"""How a picture resembles the one to keep, the strongest kind first. `re_encoded` ones may be resized too."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_MAX_BYTES: Final = 1 << 30


class PlannedImage(BaseModel):
    """An image and what the choice depends on. `exif` is None if its file was not read, `uri` if it is hidden."""

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
    """A copy of the picture to keep; one of kind `similar` only shows the same things.

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
        duplicates = tuple(duplicate.model_copy(update=hidden) for duplicate in self.duplicates)
        return self.model_copy(update={"keep": self.keep.model_copy(update=hidden), "duplicates": duplicates})


class PlanSummary(BaseModel):
    """What was looked for in which index version, and what was found.

    `unread` counts unread files by reason, `second_paths` links and other names of files that have another path.
    """

    version: str
    created_at: datetime
    looked_for: tuple[Kind, ...]
    min_score: float
    max_difference: float
    groups: int
    duplicates: dict[Kind, int]
    unread: dict[str, int]
    second_paths: int = 0


class DuplicatePlan(PlanSummary):
    found: tuple[PlannedGroup, ...]


def count_kinds(groups: Iterable[PlannedGroup]) -> dict[Kind, int]:
    """The number of duplicates of each kind that occurs."""
    counts = Counter(duplicate.kind for group in groups for duplicate in group.duplicates)
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


def write_plan(collection: Collection, plan: DuplicatePlan) -> None:
    """Replace the collection's plan."""
    lines = [plan.model_dump_json(exclude={"found"}), *(group.model_dump_json() for group in plan.found)]
    collection.storage.write_atomic(DUPLICATES, "\n".join(lines).encode())


def read_plan(collection: Collection, offset: int, limit: int) -> tuple[PlanSummary, list[PlannedGroup]] | None:
    """The plan with `limit` of its groups after the first `offset`, or None if there is none.

    CollectionError if its file is damaged.
    """
    try:
        first, *groups = collection.storage.read(DUPLICATES, max_bytes=_MAX_BYTES).splitlines()
        page = [PlannedGroup.model_validate(parse_json(group)) for group in groups[offset : offset + limit]]
        return PlanSummary.model_validate(parse_json(first)), page
    except FileNotFoundError:
        return None
    except ValueError as error:
        path = f"{collection.location}/{DUPLICATES}"
        raise CollectionError(f"{path} is damaged: run `likeness duplicates` to write it again") from error
