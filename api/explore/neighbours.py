"""The result of a search in a notebook, a sequence of matches displayed as pictures; and selected pictures in a row."""

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

import pyarrow as pa
from PIL import Image, ImageDraw

from api.explore.grid import Card, grid_html, shown_text
from api.problems import Problem
from api.search.query import Part, SearchResult, metadata_column
from api.search.service import region_of
from embedder.errors import ImageError
from embedder.images.decode import region_box, thumbnail
from index.matches import MATCH_COLUMNS, Match

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

_MAX_SHOWN = 60  # pictures in a grid: more would add megabytes to a notebook's file
SIDE = 160  # pixels of a thumbnail

# Nearest neighbours, however far away, always exist, unless options exclude them.
_NO_MATCH = "passes the options of the search, such as filter and min_score"

Thumbnail = Callable[[str, int], bytes]
"""Returns a JPEG of the image with this id, whose longer side has at most so many pixels. Raises Problem."""


@dataclass(frozen=True, kw_only=True, eq=False)
class QueryPart:
    part: Part
    caption: str

    @property
    def title(self) -> str:
        return self.caption if self.part.weight == 1 else f"{self.part.weight:+g} × {self.caption}"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Neighbours(SearchResult):
    """Matches with their query. A notebook shows them as a grid of pictures.

    `metadata` are the source's columns, `group_type` is the type of groups, null without `group_by`, and `labels` are
    your own, by id. For a picture that cannot be read, the grid gives the reason.
    """

    parts: tuple[QueryPart, ...]
    metadata: pa.Schema
    group_type: pa.DataType
    thumbnail: Thumbnail
    labels: Mapping[str, str] = field(default_factory=dict)

    __eq__, __hash__ = object.__eq__, object.__hash__  # by identity: schemas and dicts have no hash

    def __repr__(self) -> str:
        lines = [f"{_score(match):>7}  {match.image_id}" for match in self.matches]
        return "\n".join([self.caption, *lines])

    def _repr_html_(self) -> str:
        queries, matches = list(map(self._query_card, self.parts)), self.match_cards()
        return grid_html(queries, matches, caption=self.caption, note=_note(matches, len(self)))

    @property
    def caption(self) -> str:
        like = f" like {', '.join(part.title for part in self.parts)}" if self.parts else ""
        if not self:
            return f"no image{like} {_NO_MATCH}"
        about = "" if self.exact else "about "
        of = (
            f"{about}{self.total:,} images"
            if self.groups is None
            else f"{self.groups:,} groups of {self.total:,} images"
        )
        return f"{len(self):,} of {of}{like}"

    def match_cards(self) -> list[Card]:
        """Cards of the first 60 matches."""
        return map_concurrently(self._match_card, self.matches[:_MAX_SHOWN])

    def to_arrow(self) -> pa.Table:
        """A row for each match: its rank, its fields, then the metadata.

        A metadata column that has one of these names is called "metadata.<name>".
        """
        hints = {"rank": int, **get_type_hints(Match)}
        types = {name: _arrow_type(hints[name]) for name in MATCH_COLUMNS if name not in ("group", "words")}
        types["words"] = pa.map_(pa.string(), pa.list_(pa.string()))
        types["group"] = self.group_type
        metadata = [(metadata_column(field.name), field.type) for field in self.metadata]
        schema = pa.schema([*((name, types[name]) for name in MATCH_COLUMNS), *metadata])
        return pa.Table.from_pylist(self.rows(), schema=schema)

    def to_pandas(self) -> "pd.DataFrame":
        """Like `to_arrow`. Whole numbers with gaps are of pandas' type Int64, UInt64 or a smaller one, because as
        floats they would be rounded; `words` are dictionaries.
        """
        table = self.to_arrow()
        frame: pd.DataFrame = table.to_pandas(integer_object_nulls=True, maps_as_pydicts="strict")
        gaps = [field for field in table.schema if pa.types.is_integer(field.type) and table[field.name].null_count]
        return frame.astype({field.name: str(field.type).replace("i", "I").replace("u", "U") for field in gaps})

    def _match_card(self, match: Match) -> Card:
        label, own_label = match.metadata.get("label"), self.labels.get(match.image_id)
        duplicates = f", and {len(match.duplicates)} alike" if match.duplicates else ""
        group = "" if match.group_size is None else f" (one of {match.group_size:,}: {match.group})"
        card = Card(
            heading=_score(match) + (f" ● {own_label}" if own_label else ""),
            detail=(match.image_id.rpartition("/")[2] if label is None else str(label)) + duplicates + group,
            tooltip="\n".join([match.image_id, *_facts(match)]),
        )
        return with_picture(card, lambda: _outline(self.thumbnail(match.image_id, SIDE), match.box))

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


def _score(match: Match) -> str:
    return "" if match.score is None else f"{match.score:.3f}"


def _arrow_type(hint: Any) -> pa.DataType:
    """The type of a field, which may be optional."""
    first = next(iter(get_args(hint)), None)
    if get_origin(hint) is tuple:
        return pa.list_(_arrow_type(first))
    return pa.scalar(hint()).type if first is None else _arrow_type(first)


class PictureRow:
    """A grid without a query. For a picture that cannot be read, it gives the reason.

    `details` has a line for each of `ids`. Raises ValueError if their numbers differ.
    """

    def __init__(
        self, ids: Sequence[str], details: Sequence[object] | None, *, caption: str, thumbnail: Thumbnail
    ) -> None:
        if details is not None and len(details) != len(ids):
            raise ValueError(f"got {len(details)} details for {len(ids)} ids: expected one for each")
        self.ids = list(ids)
        self.details = [""] * len(ids) if details is None else [shown_text(detail) or "" for detail in details]
        self.caption = caption
        self._thumbnail = thumbnail

    def __repr__(self) -> str:
        lines = [f"{image_id}  {detail}".rstrip() for image_id, detail in zip(self.ids, self.details, strict=True)]
        return "\n".join([self.caption, *lines] if self.caption else lines)

    def _repr_html_(self) -> str:
        return grid_html([], map_concurrently(self._card, self.ids, self.details), caption=self.caption)

    def _card(self, image_id: str, detail: str) -> Card:
        card = Card(heading=image_id.rpartition("/")[2], detail=detail, tooltip=f"{image_id}\n{detail}".rstrip())
        return with_picture(card, lambda: self._thumbnail(image_id, SIDE))


def map_concurrently(make: Callable[..., T], *items: Sequence[Any]) -> list[T]:
    """Like `map`, in threads: for functions that read pictures, whose hosts may be slow."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(make, *items))


def with_picture(card: Card, jpeg: Callable[[], bytes]) -> Card:
    """The card with its picture, or with the reason for its absence."""
    try:
        return replace(card, jpeg=jpeg())
    except Problem as error:
        return replace(card, problem=f"{error.title.lower()} ({error.extensions['reason']})")
    except ImageError as error:
        return replace(card, problem=f"cannot be shown ({error.reason})")


def _outline(jpeg: bytes, box: Sequence[float] | None) -> bytes:
    """The picture with a frame around the part that matched, if only a part did."""
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
    return [*facts, *([match.uri] if match.uri else [])]


def _note(cards: Sequence[Card], count: int) -> str:
    notes = []
    if count > len(cards):
        notes.append(f"The first {len(cards)} of {count} are shown.")
    problems = Counter(card.problem for card in cards if card.problem)
    if problems:
        reasons = ", ".join(f"{count}: {problem}" for problem, count in problems.most_common())
        pictures = "1 picture" if problems.total() == 1 else f"{problems.total()} pictures"
        notes.append(
            f"{pictures} cannot be shown ({reasons}). Their scores are still valid. Hover over one to see where it was "
            "when it was embedded."
        )
    return " ".join(notes)
