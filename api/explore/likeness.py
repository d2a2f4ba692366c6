"""A collection opened in a notebook or a script, and searched without a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Self, Unpack, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from api.build_service import load_recorded
from api.client.query import (
    UNUSABLE,
    Example,
    Search,
    Sources,
    check_known,
    checked_id,
    examples_in,
    image_bytes,
    items_of,
    set_fields,
    vector_of,
    with_options,
)
from api.documents import SOURCE_FIELDS
from api.explore.lazy_model import LazyModel
from api.explore.neighbours import Neighbours, PictureRow, QueryPart, map_concurrently
from api.explore.picture_map import PictureMap
from api.explore.query_like import BareQuery, example_of
from api.observe.log import Stopwatch
from api.problems import Problem, TextNotSupported, invalid
from api.search.engine import LiveEngine
from api.search.page import direction_of, naming_option
from api.search.pictures import MAX_SIDE, MIN_SIDE, Pictures
from api.search.query import Part, Query, QueryOptions, Weighted, options_in
from api.search.service import SearchService, Vector
from embedder.errors import ModelError
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from embedder.identity import Precision
from embedder.images.decoder_pool import DecodePool
from embedder.protocol import Embedder
from embedder.python_class import is_class_name
from index.collection import Collection
from index.collection.rows import FIXED_COLUMNS
from index.errors import QueryError
from index.filters.columns import Column
from index.filters.plain import plain_value
from index.matches import Match
from index.search import Searcher
from index.search.set_columns import group_type
from index.search_options import checked_number, is_whole
from index.storage.picture_reader import PictureReader
from index.versions.servable import open_last_good

if TYPE_CHECKING:
    from api.explore.widget import ExploreWidget

_OF_A_PAGE = ("offset", "cursor")
_OPTIONS = tuple(name for name in QueryOptions.__annotations__ if name not in _OF_A_PAGE)  # of `explore`
# A grid should not wait for a host that is gone.
_FETCH_POLICY = FetchPolicy(timeout_s=10.0, retries=1)
_BUCKET_READER = PictureReader(request_s=10.0, attempts=3)


class Likeness:
    """The images of one index version, to search and to look at.

        likeness = Likeness.open("my-collection")
        likeness.search("a striped red star", k=12, filter={"width": {"$gte": 640}})

    Opening maps the index and loads no model: the first query that needs the model calls `load_model`, and `close`, or
    the end of a `with` block, frees it.

    `labels` are your own, by id; grids and maps show them. They are not saved.
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
        self.labels: dict[str, str] = {}
        self._load_model = load_model
        self._fetcher = fetcher or Fetcher(_FETCH_POLICY, buckets=_BUCKET_READER)

    @classmethod
    def open(
        cls,
        collection: str | os.PathLike[str],
        *,
        model: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        embedder: str | None = None,
        device: str | None = None,
        precision: Precision = "auto",
    ) -> Self:
        """Open the live index of a collection, or the last good one before it.

        `model` is the new location of the index's model, if it has moved: a folder or a hub id. `embedder` is the class
        that made the vectors, `module:Class`, if one did: its code runs only if you name it. Raises CollectionError,
        and ModelError if you name another.
        """
        model = None if model is None else os.fspath(model)
        opened = Collection.open(collection)
        searcher = open_last_good(opened, Searcher.open)
        _check_class(embedder, model or searcher.model.id)
        load = partial(
            load_recorded,
            searcher.model,
            model=model,
            revision=revision,
            allowed=(embedder,),
            device=device,
            precision=precision,
        )
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
        if "_service" in self.__dict__:
            self._service.close()
            del self._service, self._model

    def __reduce__(self) -> Never:
        raise TypeError(
            "a Likeness cannot be pickled, nor a grid of its pictures: open the collection where you need it, and of a "
            "result pickle the matches, as in list(found)"
        )

    def __len__(self) -> int:
        return self.searcher.ntotal

    def search(self, query: BareQuery | None = None, /, **search: Unpack[Search]) -> Neighbours:
        """The `k` nearest to `query`, or to one of `url`, `image`, `text`, `id`, `embedding` and `queries`, a mix.
        Without any of these: the first of those that pass the `filter`.

        A bare `query` is a URL, an id, a path, words, a picture, a vector or a match: see `example_of`. The keywords
        are those of `LikenessClient.search`. Raises ModelError if the model cannot be loaded, and for a wrong query
        Problem, TypeError, ValueError, or OSError if its file cannot be read.
        """
        check_known(search, Search.__annotations__)
        parts, whole = self._query(query, search)
        result = self._service.search(whole)
        schema, fields = self.searcher.segments.schema, search.get("fields")
        columns = [name for name in schema.names if name not in FIXED_COLUMNS] if fields is None else fields
        group_by = search.get("group_by")
        return Neighbours(
            **vars(result),
            parts=parts,
            metadata=pa.schema([schema.field(name) for name in dict.fromkeys(columns)]),
            group_type=pa.null() if group_by is None else group_type(Column.of(schema.field(group_by))),
            thumbnail=self.thumbnail,
            labels=self.labels,
        )

    def search_batch(
        self, searches: Iterable[BareQuery | Search], **options: Unpack[QueryOptions]
    ) -> list[Neighbours | Exception]:
        """What `search` returns for each, in order, or the error that it raises for a wrong query. Each is a bare
        query, or a search as `LikenessClient.search_batch` takes it.

        They are embedded together. `options` apply to those that do not set them. Raises ModelError like `search`.
        """
        check_known(options, QueryOptions.__annotations__)
        items = [*items_of(searches, "query", "a list of queries; use search(…) for one")]

        def search(each: BareQuery | Search) -> Neighbours | Exception:
            try:
                if isinstance(each, Mapping | None):  # None alone is no query, but an item left empty
                    return self.search(**with_options(each, options))
                return self.search(each, **options)
            except (Problem, *UNUSABLE) as error:
                return error

        _ = self._service  # created before the threads share it
        return map_concurrently(search, items)

    def vector(self, query: BareQuery | None = None, /, **search: Unpack[Search]) -> Vector:
        """The vector that `search` would use, `(dim,)` float32, unit norm. Raises like `search`."""
        check_known(search, Sources.__annotations__)
        _, whole = self._query(query, search)
        if not whole.parts:
            raise TypeError('got no query: expected one, such as vector("a red star")')
        vectors = self._service.vectors(self._service.engine, whole.parts, Stopwatch())
        return direction_of(whole.parts, vectors)

    def understands(self, words: str) -> bool:
        """Whether the model, which this loads, has a vector for these words. Some know pictures only."""
        try:
            self.vector(text=words)
        except TextNotSupported:
            return False
        return True

    def explore(
        self, query: BareQuery, toward: BareQuery | None = None, **options: Unpack[Search]
    ) -> ExploreWidget | Neighbours:
        """A grid to click in: a click makes a match the query. With `toward`, a slider mixes both. A page has `k` (18).

        `options` apply to every search, `words="only"` to those by text alone. Without anywidget (the extra
        `notebooks`) it returns what `search` returns.
        """
        check_known(options, _OPTIONS)
        ends = [example_of(end, self.searcher) for end in ([query] if toward is None else [query, toward])]
        if options.get("k") is None:
            options["k"] = 18
        try:
            from api.explore.widget import ExploreWidget
        except ModuleNotFoundError as error:
            if error.name not in ("anywidget", "traitlets"):
                raise
            options["queries"] = ends
            return self.search(**options)
        other = ends[1] if len(ends) == 2 else None
        return ExploreWidget(self.search, ends[0], other, options)

    def mark(self, images: Iterable[str | Match], label: str) -> None:
        """Give images, by id or as matches, a label of your own, in `labels`. Raises QueryError for an unknown id."""
        self.labels.update({str(self._row(image_id)["image_id"]): label for image_id in _ids_of(images)})

    def map(
        self, points: npt.ArrayLike, ids: Iterable[str | Match], groups: Iterable[object] | None = None
    ) -> PictureMap:
        """The pictures of `ids` on a plane at `points`, `(n, 2)`, coloured by `groups`, or by your own labels."""
        ids = _ids_of(ids)
        if groups is not None:
            groups = [*items_of(groups, "group", "a list of groups, one for each id")]
        named = [None] * len(ids) if groups is None else groups
        if self.labels and len(named) == len(ids):
            groups = [self.labels.get(image_id, group) for image_id, group in zip(ids, named, strict=True)]
        return PictureMap(points, ids, thumbnail=self.thumbnail, groups=groups)

    def show(
        self, ids: Iterable[str | Match], details: Iterable[object] | None = None, *, caption: str = ""
    ) -> PictureRow:
        """The pictures of `ids` in a row, each with its line of `details`. ValueError if their numbers differ."""
        lines = None if details is None else [*items_of(details, "line", "a list of details, one for each id")]
        return PictureRow(_ids_of(ids), lines, caption=caption, thumbnail=self.thumbnail)

    def thumbnail(self, image_id: str, side: int = 160) -> bytes:
        """A JPEG of an image, its longer side at most `side` pixels, from 16 to 1,024. Raises Problem for another
        side, and if the image's file cannot be read.
        """
        if not is_whole(side) or not MIN_SIDE <= side <= MAX_SIDE:
            raise invalid("side", f"a whole number from {MIN_SIDE} to {MAX_SIDE:,}", side)
        return self._service.pictures.read(self._row(image_id), int(side)).data

    def _row(self, image_id: str) -> Mapping[str, Any]:
        row = self.searcher.row(checked_id(image_id))
        if row is None:
            raise QueryError(
                f"index version {self.searcher.version} holds no image {image_id!r}: expected the id of one it holds"
            )
        return row

    @cached_property
    def _model(self) -> LazyModel:
        return LazyModel(self.searcher.model, self._load_model)

    @cached_property
    def _service(self) -> SearchService:
        model = self._model
        return SearchService(
            live=LiveEngine(self.searcher, lambda _: model),
            query_fetcher=self._fetcher,
            pictures=Pictures(self._fetcher, DecodePool()),
        )

    def _query(self, query: BareQuery | None, search: Search) -> tuple[tuple[QueryPart, ...], Query]:
        """The parts of a query, and the whole, the model that it needs loaded."""
        with naming_option():
            parts = tuple(self._query_part(example) for example in self._examples(query, search))
            whole = Query(parts=tuple(part.part for part in parts), options=_plain_options(search))
        if whole.needs_model:
            _ = self._model.loaded  # here, so that the error is about the model and not the query
        return parts, whole

    def _examples(self, query: BareQuery | None, search: Search) -> Sequence[Example]:
        """The parts of a query: one, perhaps with a crop, those of a mix, or none."""
        fields = [name for name in (*SOURCE_FIELDS, "queries") if search.get(name) is not None]
        if (query is not None) + len(fields) > 1:
            raise TypeError(
                f"expected at most one of a query, {', '.join(SOURCE_FIELDS)} and queries, got "
                f"{', '.join([*(['a query'] if query is not None else []), *fields])}"
            )
        mixed, crop = search.get("queries"), search.get("crop")
        if query is None and not fields:
            if crop is not None:
                raise TypeError("got crop without a picture to take it from")
            return []
        if mixed is None:
            only: Example = {fields[0]: search[fields[0]]} if query is None else example_of(query, self.searcher)  # type: ignore[misc]
            return [{**only, "crop": crop}]
        if crop is not None:
            raise TypeError("got crop beside queries: expected it in one of the queries")
        if not (examples := examples_in(mixed)):
            raise TypeError("got no queries: expected a list of one or more")
        return examples

    def _query_part(self, example: Example) -> QueryPart:
        """A part of a query with a caption, and its picture fetched."""
        fields = set_fields(Example, example)
        crop: Sequence[float] | None = fields.pop("crop", None)
        if crop is not None and (np.shape(crop) != (4,) or np.asarray(crop).dtype.kind not in "iuf"):
            raise TypeError(
                f"got crop {crop!r}: expected [x, y, width, height] as fractions of the picture, from 0 to 1"
            )
        more: Any = {
            "weight": checked_number("weight", fields.pop("weight", 1.0), Weighted),
            "crop": None if crop is None else tuple(map(float, crop)),
        }
        if len(fields) != 1:
            raise TypeError(
                f"expected one of {', '.join(SOURCE_FIELDS)} in each of the queries, got {', '.join(fields) or 'none'}"
            )
        [(kind, value)] = fields.items()
        if kind in ("url", "text", "id") and not isinstance(value, str):
            raise TypeError(f"got {kind} {value!r:.80}: expected one string; search_batch takes several queries")
        match kind:
            case "url":
                part, caption = self._service.fetch(Part(url=value, **more)), value
            case "image":
                part = Part(data=image_bytes(value), **more)
                caption = Path(value).name if isinstance(value, str | os.PathLike) else "a picture"
            case "text":
                part, caption = Part(text=value, **more), f"“{value}”"
            case "id":
                part, caption = self._service.fetch(Part(image_id=value, **more)), value
            case _:
                part, caption = Part(vector=vector_of(value), **more), "a vector"
        return QueryPart(part=part, caption=caption if crop is None else f"a part of {caption}")


def _check_class(embedder: object, model: str) -> None:
    """TypeError for a class that is not given by its name, ModelError for another one than the `model` of an index."""
    if not isinstance(embedder, str | None):
        raise TypeError(f'got embedder {embedder!r:.80}: expected the name of a class, such as "my_module:MyClass"')
    by_class = is_class_name(model)
    if embedder is not None and not (by_class and embedder == model):
        expected = repr(model) if by_class else "none"
        raise ModelError(f"got embedder {embedder!r}: expected {expected}, as the index has vectors of {model}")


def _ids_of(images: Iterable[str | Match]) -> list[str]:
    items = items_of(images, "id", "a list of ids or matches")
    return [checked_id(image.image_id if isinstance(image, Match) else image) for image in items]


def _plain_options(search: Search) -> QueryOptions:
    """The options as a server would get them. A filter is converted where it is parsed."""
    options = options_in(search).items()
    return cast(QueryOptions, {name: value if name == "filter" else plain_value(value) for name, value in options})
