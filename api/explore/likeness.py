"""A collection opened in a notebook or a script, and searched without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from api.client.query import Example, ImageLike, Search, image_bytes
from api.errors import OtherModelError
from api.explore.exploration import Exploration
from api.explore.neighbours import Neighbours, QueryPart
from api.explore.picture_map import PictureMap
from api.explore.picture_row import PictureRow
from api.explore.query_like import BareQuery, example_of
from api.search.nearest import Vector, nearest, vector_of_image
from api.search.pictures import Pictures
from api.search.query import Part, Query
from api.search.service import SearchService
from embedder.errors import ModelError
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from embedder.images.decoder_pool import DecodePool
from embedder.protocol import Embedder
from index.collection import Collection
from index.collection.rows import FIXED
from index.errors import QueryError
from index.queries import SearchOptions, mix
from index.search import Searcher
from index.search.searcher import open_last_good
from index.storage.picture_reader import PictureReader

if TYPE_CHECKING:
    from api.explore.widget import ExploreWidget

__all__ = ["Likeness", "Neighbours"]

_WHAT = ("url", "image", "text", "id", "embedding")
_OPTIONS = tuple(name for name in Search.__annotations__ if name not in (*_WHAT, "queries", "offset"))  # of every page
_DISTINCT = 0.98  # of `distinct=True`, as the server has it
# A grid should not wait for a host that is gone.
_FOR_EYES = FetchPolicy(timeout_s=10.0, retries=1)
_BUCKETS_FOR_EYES = PictureReader(request_s=10.0, attempts=3)


class Likeness:
    """The images of one index version, to be searched and looked at.

        likeness = Likeness.open("my-collection")
        likeness.search("a striped red star", k=12, filter={"width": {"$gte": 640}})

    Opening maps the index and loads no model: `load_model` is called by the first query that needs it, and `close`, or
    the end of a `with` block, frees it.
    """

    def __init__(
        self,
        searcher: Searcher,
        load_model: Callable[[], Embedder],
        *,
        location: str = "",
        fetcher: Fetcher | None = None,
    ) -> None:
        self.searcher = searcher
        self.location = location
        self._load_model = load_model
        self._fetcher = fetcher or Fetcher(_FOR_EYES, buckets=_BUCKETS_FOR_EYES)
        self._decoders = DecodePool()
        self._pictures = Pictures(self._fetcher, self._decoders)

    @classmethod
    def open(
        cls, collection: str | Path, *, model: str | None = None, revision: str | None = None, device: str | None = None
    ) -> Self:
        """Open the live index of a collection, or the last good one before it.

        `model` says where the model of the index is, if it has moved: a folder or a hub id. CollectionError says what
        is wrong with the collection.
        """
        opened = Collection.open(str(collection))
        searcher = open_last_good(opened)
        recorded = searcher.model

        def load() -> Embedder:
            from embedder.models.clip import ClipEmbedder  # torch takes seconds

            wanted = revision if model is not None else revision or recorded.revision
            return ClipEmbedder.load(model or recorded.id, revision=wanted, device=device)

        return cls(searcher, load, location=opened.location)

    def __repr__(self) -> str:
        searcher = self.searcher
        return f"<{self.location}: {len(self):,} images, index version {searcher.version}, model {searcher.model.id}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model, and end its thread and the processes that decode. A later query starts them again."""
        service = self.__dict__.pop("_service", None)
        if service is not None:
            service.close()
        self._decoders.close()

    def __len__(self) -> int:
        """Number of images."""
        return self.searcher.ntotal

    def search(self, query: BareQuery | None = None, /, **search: Unpack[Search]) -> Neighbours:
        """The `k` (10) nearest to `query`, or to one of `url`, `image`, `text`, `id`, `embedding` and `queries`, a mix.

        A bare `query` is a URL, an id, a path, words, a picture, a vector or a match: see `example_of`. The keywords
        are those of `LikenessClient.search`. FetchError says what is wrong with a URL, ModelError why the model cannot
        be loaded, Problem and QueryError everything else.
        """
        _check_known(search, Search.__annotations__)
        asked = [self._asked(example) for example in self._examples(query, search)]
        parts = tuple(each.part for each in asked)
        options = _options(search)
        fields = search.get("fields")
        wanted = Query(
            parts=parts, k=search.get("k", 10), options=options, fields=None if fields is None else tuple(fields)
        )
        matches = nearest(self.searcher, wanted, [self._vector(part) for part in parts])
        schema = self.searcher.segments.schema
        return Neighbours(
            matches=tuple(matches),
            asked=tuple(asked),
            metadata=pa.schema([field for field in schema if field.name not in FIXED]),
            version=self.searcher.version,
            ntotal=len(self),
            thumbnail=self.thumbnail,
            first=options.get("offset", 0) + 1,
        )

    def vector(self, query: BareQuery | None = None, /, **search: Unpack[Search]) -> Vector:
        """The vector that `search` would use, `(dim,)` float32, unit norm. Raises like `search`."""
        _check_known(search, (*_WHAT, "queries"))
        parts = [self._asked(example).part for example in self._examples(query, search)]
        return mix(np.stack([self._vector(part) for part in parts]), [part.weight for part in parts])

    def explore(
        self, query: BareQuery, toward: BareQuery | None = None, **options: Unpack[Search]
    ) -> ExploreWidget | Neighbours:
        """A grid to click in: a match becomes the query; with `toward`, a slider mixes the two; pages are of `k` (18).

        `options` go with every search. Without anywidget (the extra `notebooks`) it returns what `search` returns.
        """
        _check_known(options, _OPTIONS)
        ends = [example_of(end, self.searcher) for end in (query, toward) if end is not None]
        try:
            from api.explore.widget import ExploreWidget
        except ModuleNotFoundError as error:
            if error.name not in ("anywidget", "traitlets"):
                raise
            options["queries"] = ends
            return self.search(**options)
        other = ends[1] if len(ends) == 2 else None
        return ExploreWidget(Exploration(lambda search: self.search(**search), ends[0], other, options))

    def map(self, points: npt.ArrayLike, ids: Sequence[str], groups: Sequence[str | None] | None = None) -> PictureMap:
        """The pictures of `ids` on a plane at `points`, `(n, 2)`, coloured by `groups`."""
        return PictureMap(points, ids, thumbnail=self.thumbnail, groups=groups)

    def show(self, ids: Sequence[str], details: Sequence[str] | None = None, *, caption: str = "") -> PictureRow:
        """The pictures of `ids`, each with a line of `details` below. ValueError when these are not one for each."""
        return PictureRow(ids, details, caption=caption, thumbnail=self.thumbnail)

    def thumbnail(self, image_id: str, side: int = 160) -> bytes:
        """A JPEG of an image, its longer side `side` pixels at most. Problem when its file cannot be read."""
        row = self.searcher.row(image_id)
        if row is None:
            raise QueryError(f"index version {self.searcher.version} holds no image {image_id!r}: expected an id of it")
        return self._pictures.read(row, side).data

    @cached_property
    def _service(self) -> SearchService:
        """The service with the model, for queries that need one."""
        try:
            return SearchService(
                embedder=self._load_model(),
                searcher=self.searcher,
                query_fetcher=self._fetcher,
                picture_fetcher=self._fetcher,
                decoders=self._decoders,
            )
        except ModelError as error:
            raise type(error)(
                f"{error}. Searches by id and by vector work without; if the model has moved, say where it is: "
                "Likeness.open(…, model=…)"
            ) from error
        except OtherModelError as error:
            raise OtherModelError(f"{error}. Searches by id and by vector work without a model") from error

    def _examples(self, query: BareQuery | None, search: Search) -> Sequence[Example]:
        """The parts of a query: exactly one, or those of a mix."""
        given = [name for name in (*_WHAT, "queries") if search.get(name) is not None]
        if (query is not None) + len(given) != 1:
            raise TypeError(
                f"expected exactly one of a query, {', '.join(_WHAT)} and queries, got "
                f"{', '.join([*(['a query'] if query is not None else []), *given]) or 'none'}"
            )
        if query is not None:
            return [example_of(query, self.searcher)]
        mixed = search.get("queries")
        if mixed is None:
            return [{given[0]: search[given[0]]}]  # type: ignore[misc]
        if not mixed:
            raise TypeError("got no queries: expected a list of one part or more")
        return mixed

    def _asked(self, example: Example) -> QueryPart:
        """A part of a query, its picture fetched, with a name for it."""
        given: dict[str, Any] = {name: value for name, value in example.items() if value is not None}
        weight = float(given.pop("weight", 1.0))
        if len(given) != 1 or not given.keys() <= set(_WHAT):
            raise TypeError(f"a part of a mix has {', '.join(given) or 'nothing'}: expected one of {', '.join(_WHAT)}")
        [(what, value)] = given.items()
        match what:
            case "url":
                return QueryPart(part=Part(url=value, data=self._fetcher.fetch(value), weight=weight), caption=value)
            case "image":
                return QueryPart(part=Part(data=image_bytes(value), weight=weight), caption=_name(value))
            case "text":
                return QueryPart(part=Part(text=value, weight=weight), caption=f"“{value}”")
            case "id":
                return QueryPart(part=Part(image_id=value, weight=weight), caption=value)
            case _:
                return QueryPart(part=Part(vector=np.asarray(value, np.float32), weight=weight), caption="a vector")

    def _vector(self, part: Part) -> Vector:
        """The vector of a part; for an image of the index, or a vector, without the model."""
        if part.data is not None or part.text is not None:
            return self._service.embed(part, self._service.engine)
        if part.image_id is not None:
            return vector_of_image(self.searcher, part.image_id, part.at)
        vector = part.vector
        if vector is None or vector.shape != (self.searcher.dim,):
            shape = None if vector is None else vector.shape
            raise QueryError(f"got a vector of shape {shape}: the index takes ({self.searcher.dim},)")
        return vector


def _options(search: Search) -> SearchOptions:
    """The keywords of a search as those of `Searcher.search`."""
    distinct = search.get("distinct")
    return SearchOptions(
        offset=search.get("offset") or 0,
        min_score=search.get("min_score"),
        filter=search.get("filter"),
        distinct=_DISTINCT if distinct is True else None if distinct is False else distinct,
    )


def _check_known(given: Search, known: Iterable[str]) -> None:
    """TypeError names keywords that would have no effect, such as misspelt ones."""
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise TypeError(f"got {', '.join(unknown)}: expected keywords among {', '.join(known)}")


def _name(picture: ImageLike) -> str:
    """A file's name, for people."""
    return Path(picture).name if isinstance(picture, str | Path) else "a picture"
