"""The result of a search in a notebook: a sequence of matches that is displayed as pictures."""

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

import pyarrow as pa
from PIL import Image, ImageDraw

from api.errors import Problem
from api.explore.grid import Card, grid_html
from api.search.query import MATCH_COLUMNS, Part, match_rows, metadata_column
from api.search.service import region_of
from embedder.errors import ImageError
from embedder.images.decode import region_box, thumbnail
from index.match import Match

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

_SHOWN = 60  # pictures of one grid: more would weigh megabytes in a notebook's file
SIDE = 160  # pixels of a thumbnail

# There are always nearest neighbours, no matter how far away, unless one of these options excludes them.
_WHY_NONE = "passes filter, min_score, min_percentile and offset"

_TYPES = (
    *(pa.int64(), pa.float64(), pa.float64(), pa.string(), pa.string()),
    *(pa.list_(pa.string()), pa.list_(pa.float64())),
)
"""Of MATCH_COLUMNS."""

Thumbnail = Callable[[str, int], bytes]
"""From the id of an image of the index and a side in pixels to a JPEG. Raises Problem."""


@dataclass(frozen=True, kw_only=True, eq=False)
class QueryPart:
    part: Part
    caption: str

    @property
    def title(self) -> str:
        return self.caption if self.part.weight == 1 else f"{self.part.weight:+g} × {self.caption}"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Neighbours(Sequence[Match]):
    """Matches, best first, with their query. A notebook shows them as a grid of pictures.

    `first` is the rank of the first; `metadata` has the columns that the source carried, `version` names the index
    version and `ntotal` says how many images it has; `labels` are one's own, by id. A picture that cannot be read is a
    placeholder with the reason.
    """

    matches: tuple[Match, ...]
    parts: tuple[QueryPart, ...]
    metadata: pa.Schema
    version: str
    ntotal: int
    thumbnail: Thumbnail
    labels: Mapping[str, str] = field(default_factory=dict)
    first: int = 1

    @overload
    def __getitem__(self, at: int) -> Match: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Match, ...]: ...
    def __getitem__(self, at: int | slice) -> Match | tuple[Match, ...]:
        return self.matches[at]

    def __len__(self) -> int:
        return len(self.matches)

    def __iter__(self) -> Iterator[Match]:
        return iter(self.matches)

    def __repr__(self) -> str:
        lines = [f"{match.score:7.3f}  {match.image_id}" for match in self.matches]
        return "\n".join([self.caption, *lines])

    def _repr_html_(self) -> str:
        matches = self.match_cards()
        return grid_html(self.query_cards(), matches, caption=self.caption, note=_note(matches, len(self)))

    @property
    def caption(self) -> str:
        like = f"like {', '.join(part.title for part in self.parts)}"
        return f"{len(self):,} of {self.ntotal:,} images {like}" if self else f"no image {like} {_WHY_NONE}"

    def query_cards(self) -> list[Card]:
        return [self._query_card(part) for part in self.parts]

    def match_cards(self) -> list[Card]:
        """A card for each match, of the first 60."""
        return map_concurrently(self._match_card, self.matches[:_SHOWN])

    def to_arrow(self) -> pa.Table:
        """A row for each match: rank, score, percentile, image_id, uri, duplicates, box, then the metadata.

        A metadata column that has one of these names is called "metadata.<name>".
        """
        metadata = [(metadata_column(field.name), field.type) for field in self.metadata]
        schema = pa.schema([*zip(MATCH_COLUMNS, _TYPES, strict=True), *metadata])
        return pa.Table.from_pylist(match_rows(self.matches, self.first), schema=schema)

    def to_pandas(self) -> "pd.DataFrame":
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def _match_card(self, match: Match) -> Card:
        label, own = match.metadata.get("label"), self.labels.get(match.image_id)
        alike = f", and {len(match.duplicates)} alike" if match.duplicates else ""
        card = Card(
            heading=f"{match.score:.3f}" + (f" ● {own}" if own else ""),
            detail=(match.image_id.rpartition("/")[2] if label is None else str(label)) + alike,
            tooltip="\n".join([match.image_id, *_facts(match)]),
        )
        return with_picture(card, lambda: _outlined(self.thumbnail(match.image_id, SIDE), match.box))

    def _query_card(self, query: QueryPart) -> Card:
        part = query.part
        heading = "query" if part.weight == 1 else f"{part.weight:+g} ×"
        card = Card(heading=heading, detail=query.caption, tooltip=query.title)
        if part.data is not None:
            data, region = part.data, region_of(part) or (0, 0, 1, 1)
            return with_picture(card, lambda: thumbnail(data, SIDE, region=region))
        if part.image_id is not None:
            image_id = part.image_id
            return with_picture(card, lambda: self.thumbnail(image_id, SIDE))
        return replace(card, words=part.text, detail="words") if part.text else replace(card, words="a vector")


def map_concurrently(make: Callable[..., T], *items: Sequence[Any]) -> list[T]:
    """Like `map`, for what reads pictures: their hosts may be slow."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(make, *items))


def with_picture(card: Card, jpeg: Callable[[], bytes]) -> Card:
    """The card with its picture, or with the reason why there is none."""
    try:
        return replace(card, jpeg=jpeg())
    except Problem as error:
        return replace(card, problem=f"{error.kind.title.lower()} ({error.extensions['reason']})")
    except ImageError as error:
        return replace(card, problem=f"cannot be shown ({error.reason})")


def _outlined(jpeg: bytes, box: Sequence[float] | None) -> bytes:
    """The picture with a frame around the part that was found, if it was a part."""
    if box is None:
        return jpeg
    image = Image.open(io.BytesIO(jpeg))
    left, top, right, bottom = region_box((box[0], box[1], box[2], box[3]), *image.size)
    draw = ImageDraw.Draw(image)
    for inset, colour in enumerate(("black", "white", "black")):
        draw.rectangle((left + inset, top + inset, right - 1 - inset, bottom - 1 - inset), outline=colour)
    target = io.BytesIO()
    image.save(target, "JPEG", quality=90)
    return target.getvalue()


def _facts(match: Match) -> list[str]:
    facts = [f"{name}: {value}" for name, value in match.metadata.items() if value is not None]
    if match.percentile is not None:
        facts.insert(0, f"nearer than {match.percentile:g} % of random pairs")
    return [*facts, match.uri]


def _note(cards: Sequence[Card], count: int) -> str:
    notes = []
    if count > len(cards):
        notes.append(f"The first {len(cards)} of {count} are shown.")
    problems = Counter(card.problem for card in cards if card.problem)
    if problems:
        what = ", ".join(f"{count}: {problem}" for problem, count in problems.most_common())
        pictures = "1 picture" if problems.total() == 1 else f"{problems.total()} pictures"
        notes.append(
            f"{pictures} cannot be shown ({what}). The scores hold all the same; hover to see where each was when it "
            "was embedded."
        )
    return " ".join(notes)
