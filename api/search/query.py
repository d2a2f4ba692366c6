"""A parsed query, and its result."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, cast, get_args, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict  # pydantic refuses `typing.TypedDict` before Python 3.12

from api.documents import FacetOut
from api.search.cursor import Cursor, digest_of
from embedder.identity import ModelIdentity
from index.errors import OptionError
from index.matches import MATCH_COLUMNS, Match
from index.queries import QueryKind, Source, kind_of
from index.search_options import (
    DEFAULT_K,
    MAX_K,
    OF_VECTORS,
    Place,
    QueryLimits,
    SearchOptions,
    checked_k,
    checked_number,
    is_set,
)

if TYPE_CHECKING:
    import pandas as pd

NOT_OF_WORDS: Final = (*OF_VECTORS, "min_percentile")
"""A search for words alone takes none of these."""
_ONE_LIST: Final = (*NOT_OF_WORDS, "sort", "group_by")
"""With these, vectors and words do not become one list."""
Words = Literal["auto", "off", "only"]
_WORDS: Final = get_args(Words)
_PREFIXES: Final = re.compile(r"^(metadata\.)+")
_OF_A_PAGE: Final = frozenset({"k", "offset", "fields", "facets", "cursor", "allow_partial"})


class QueryOptions(SearchOptions, total=False):
    """What the client, the notebook, a server and `likeness search` take beside what to look for."""

    k: Annotated[
        int | None,
        Field(
            # Checked with the offset, and by servers against a lower maximum.
            json_schema_extra={"minimum": 1, "maximum": MAX_K},
            description=f"how many matches to return; {DEFAULT_K} by default; a server may set a lower maximum",
        ),
    ]
    min_percentile: Annotated[
        float | None,
        Field(
            ge=0,
            le=100,
            allow_inf_nan=False,
            description="the lowest percentile of a match; refused if the matches have none",
        ),
    ]
    words: Annotated[
        Words | None,
        Field(
            description="whether a search by `text` also looks for images that have these words in a column of text, "
            "such as captions, or in the name of a file: `auto`, the default, ranks both as one list without "
            f"{', '.join(_ONE_LIST[:-1])} and {_ONE_LIST[-1]}; `only` needs no model; `off`",
        ),
    ]
    cursor: Annotated[
        str | None,
        Field(
            max_length=100_000,  # it has an id for each collection
            description="the `cursor` of an answer, for the next page of the same search in the same index version; "
            "other options but k, fields and facets have to be the same",
        ),
    ]
    allow_partial: Annotated[
        bool | None,
        Field(
            description="if a part of the index does not answer, search the others and say how many images they hold; "
            "by default such a search fails",
        ),
    ]


class Weighted(TypedDict, total=False):
    """A part of a mix."""

    weight: Annotated[
        float | None,
        Field(
            ge=-100,
            le=100,
            allow_inf_nan=False,
            description="1 by default; negative: prefer images unlike this one",
        ),
    ]


def fields_in(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that are fields of a TypedDict, and are not None."""
    return {name: values[name] for name in kind.__annotations__ if values.get(name) is not None}


def options_in(values: Mapping[str, Any]) -> QueryOptions:
    return cast(QueryOptions, fields_in(QueryOptions, values))


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """A picture, text or vector to be like, or unlike if `weight` is negative. The first field that is set counts.

    `data` is a picture's file, `url` its address, `image_id` an image of the index, and `vector` `(dim,)` of any norm
    but zero. `crop` is a part of the picture: left, top, width and height, as fractions of the upright picture.
    `field_path` is the path of a field in the request, as error messages give it, for example "queries.2.{}".
    """

    data: bytes | None = None
    url: str | None = None
    text: str | None = None
    image_id: str | None = None
    vector: NDArray[np.floating[Any]] | None = None
    crop: tuple[float, ...] | None = None
    weight: float = 1.0
    field_path: str = "{}"

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise OptionError(self.field_path.format("weight"), self.weight, "a finite number")

    @property
    def needs_fetch(self) -> bool:
        """Whether a picture has to be fetched: from a URL, or for a crop of an image of the index."""
        return self.data is None and (self.url is not None or (self.image_id is not None and self.crop is not None))

    @property
    def needs_model(self) -> bool:
        """Whether the model has to make its vector."""
        return self.data is not None or self.text is not None or self.needs_fetch

    @property
    def picture_field(self) -> str:
        """The path of the field that names the picture in the request."""
        return self.field_path.format("url" if self.url is not None else "id" if self.image_id is not None else "image")

    @property
    def source(self) -> Source:
        """What its vector is made from."""
        if self.data is not None or self.url is not None:
            return "image"
        return "text" if self.text is not None else "image" if self.image_id is not None else "vector"


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """A mix of `parts`, and how many and which of its neighbours to return. Without parts, images are only filtered,
    sorted and counted. Raises OptionError.
    """

    parts: tuple[Part, ...]
    options: QueryOptions = field(default_factory=QueryOptions)
    hidden: frozenset[str] = frozenset()
    """Columns whose words do not count."""
    start: Place | None = None
    """Where the page begins if there is no cursor."""

    def __post_init__(self) -> None:
        QueryLimits.checked(self.options.get("k"), self.search_options)
        if (words := self.options.get("words")) not in (None, *_WORDS):
            raise OptionError("words", words, f"one of {', '.join(_WORDS)}")
        if not isinstance(partial := self.options.get("allow_partial", False), bool):
            raise OptionError("allow_partial", partial, "true or false")
        if (percentile := self.options.get("min_percentile")) is not None:
            checked_number("min_percentile", percentile, QueryOptions)
        if self.options.get("cursor") is not None and self.offset:
            raise OptionError("offset", self.offset, "none with cursor, which says where the page begins")

    @cached_property
    def cursor(self) -> Cursor | None:
        """Where this page begins; None: at `offset`."""
        text = self.options.get("cursor")
        return None if text is None else Cursor.read(text, self.digest)

    @property
    def place(self) -> Place:
        """Where the page before this one ended."""
        if self.cursor is not None:
            return self.cursor.place
        return self.start or Place(seen=self.offset, first=self.offset + self.k)

    @property
    def words(self) -> str | None:
        """The words to look for in text; None if they do not count."""
        mode, parts = self.options.get("words") or "auto", self.parts
        if mode == "off" or len(parts) != 1 or (text := parts[0].text) is None or parts[0].weight < 0:
            return None
        return text if mode == "only" or not any(is_set(self.options, name) for name in _ONE_LIST) else None

    @property
    def needs_vectors(self) -> bool:
        """Whether vectors are compared."""
        return bool(self.parts) and self.options.get("words") != "only"

    @property
    def needs_model(self) -> bool:
        return self.needs_vectors and any(part.needs_model for part in self.parts)

    @cached_property
    def digest(self) -> str:
        """Of what all pages of a search have in common, apart from pictures and vectors."""
        options = {name: value for name, value in self.options.items() if name not in _OF_A_PAGE and value is not None}
        return digest_of([options, [(part.text, part.image_id, part.url, part.weight) for part in self.parts]])

    @property
    def k(self) -> int:
        return checked_k(self.options.get("k"))

    @property
    def offset(self) -> int:
        return int(self.options.get("offset") or 0)

    @property
    def search_options(self) -> SearchOptions:
        """The options that `Searcher.search` takes."""
        return cast(SearchOptions, fields_in(SearchOptions, self.options))

    @property
    def kind(self) -> QueryKind | None:
        """Decides how far the search looks, and whether matches have a percentile."""
        return kind_of([(part.source, part.weight) for part in self.parts])


@dataclass(frozen=True, kw_only=True, eq=False)
class Matches(Sequence[Match]):
    """A page of matches, in order; `first` is the rank of the first of them.

    The search has `total` matches on all pages: `exact` unless an approximate search found them. With `group_by` they
    are in `groups` groups. `facets` are the values of columns among all of them. `cursor` is for the next page.
    """

    COLUMNS: ClassVar[Sequence[str]] = MATCH_COLUMNS
    """Of a table of matches, before the metadata."""

    matches: Sequence[Match]
    first: int = 1
    total: int
    exact: bool
    groups: int | None = None
    facets: Mapping[str, FacetOut] | None = None
    cursor: str | None = None

    @overload
    def __getitem__(self, at: int) -> Match: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Match]: ...
    def __getitem__(self, at: int | slice) -> Match | Sequence[Match]:
        return self.matches[at]

    def __len__(self) -> int:
        return len(self.matches)

    def rows(self) -> list[dict[str, Any]]:
        """A table row for each match: its rank, its fields, then the metadata."""
        return [
            {"rank": rank}
            | {name: getattr(match, name) for name in MATCH_COLUMNS[1:]}
            | {metadata_column(name, self.COLUMNS): value for name, value in match.metadata.items()}
            for rank, match in enumerate(self.matches, start=self.first)
        ]

    def to_pandas(self) -> "pd.DataFrame":
        """A row for each match: its rank, its fields, then the metadata.

        A metadata column with one of these names is called "metadata.<name>". Whole numbers with gaps are of pandas'
        type Int64 or UInt64, because as floats they would be rounded.
        """
        import pandas as pd

        rows = self.rows()
        names = dict.fromkeys(name for row in rows for name in row) or self.COLUMNS
        return pd.DataFrame({name: _frame_column([row.get(name) for row in rows]) for name in names})


def _frame_column(values: list[Any]) -> Any:
    """The values, as pandas holds them exactly."""
    import pandas as pd

    if None not in values or pd.api.types.infer_dtype(values, skipna=True) != "integer":
        return values
    numbers = [value for value in values if value is not None]
    for kind in (np.int64, np.uint64):
        if np.iinfo(kind).min <= min(numbers) and max(numbers) <= np.iinfo(kind).max:
            return pd.array(values, "Int64" if kind is np.int64 else "UInt64")
    return values


@dataclass(frozen=True, kw_only=True)
class SearchResult(Matches):
    """A page of matches with the index version and model.

    `searched` of the `ntotal` images were searched: fewer than all if a part of the index did not answer and the caller
    allowed that. `timing_ms`: milliseconds by stage (fetch, decode and embed if the query needed them, search), and
    `total`.
    """

    version: str
    ntotal: int
    searched: int
    model: ModelIdentity
    timing_ms: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class CollectionsResult(Matches):
    """A page of matches in several collections, with the name of each one's collection. See `SearchResult`; `versions`
    are by collection, and `model` is None if they have different ones.
    """

    COLUMNS: ClassVar[Sequence[str]] = ("collection", *MATCH_COLUMNS)

    collections: Sequence[str]
    versions: Mapping[str, str]
    ntotal: int
    searched: int
    model: ModelIdentity | None
    timing_ms: Mapping[str, float]

    def rows(self) -> list[dict[str, Any]]:
        """Like those of a search in one, after the match's `collection`."""
        return [{"collection": name} | row for row, name in zip(super().rows(), self.collections, strict=True)]


def metadata_column(name: str, taken: Collection[str] = MATCH_COLUMNS) -> str:
    """The name of a metadata column in a table of matches, which has columns with the `taken` names. "metadata.rank" is
    renamed as "rank" is, so that both can be there.
    """
    return f"metadata.{name}" if _PREFIXES.sub("", name) in taken else name
