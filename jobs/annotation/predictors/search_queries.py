"""The vectors of saved searches' queries, which are embedded once and remembered beside the annotation's runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from embedder.errors import ImageError, UnsupportedInputError
from embedder.images import CropSpec
from embedder.images.decode import decode_image
from embedder.images.limits import ACCEPTED_LIMITS
from embedder.protocol import Embedder
from index.arrays import Vectors
from index.collection import Collection
from index.collection.annotations import annotation_log
from index.collection.layout import QUERY_VECTORS
from index.collection.live_rows import LiveRows
from index.collection.records import Learned, ModelRecord
from index.matches import SEARCHES
from jobs.errors import UsageError
from jobs.indexing.query_texts import stored_vectors
from jobs.search_spec import SearchSpec
from jobs.values import fingerprint_of

Load: TypeAlias = Callable[[ModelRecord], Embedder]

_ANY_CROP: Final = CropSpec(side=32, shortest_edge=None)


def broken_queries(
    searches: Sequence[SearchSpec], collection: Collection, live: LiveRows | None, model: ModelRecord, load: Load
) -> dict[str, str]:
    """Why queries can have no vector, by the names of their searches. Without `live` rows, ids may have yet to come."""
    known, new, broken = _remembered(annotation_log(collection, SEARCHES)), list[SearchSpec](), dict[str, str]()
    for search in searches:
        try:
            if query_key(search, model) not in known:
                new.append(search)
                if search.image:
                    _decode(search, _ANY_CROP)
        except UsageError as error:
            broken[search.name] = str(error)
    texts = {search.name: str(search.text) for search in new if search.text}
    try:
        if texts:
            load(model).embed_texts([*texts.values()][:1])
    except UnsupportedInputError as error:
        broken |= {name: f"the search {name!r} is by words: {error}; show a picture instead" for name in texts}
    ids = {search.name: search.image_id for search in new if search.image_id}
    stored = stored_vectors(live, ids.values()) if live else ids.values()
    return broken | {
        name: f"the search {name!r} has image_id {image_id!r}, which is not in the collection: expected an id as "
        "`likeness search` shows them"
        for name, image_id in ids.items()
        if image_id not in stored
    }


def query_vectors(
    searches: Sequence[SearchSpec], collection: Collection, live: LiveRows, model: ModelRecord, load: Load
) -> Vectors:
    """The vectors of the searches' queries, `(n, dim)` float32; none of them is broken."""
    log = annotation_log(collection, SEARCHES)
    known, keys = _remembered(log), [query_key(search, model) for search in searches]
    queries = dict(zip(keys, searches, strict=True))
    if new := {key: search for key, search in queries.items() if key not in known}:
        known |= _embed(new, live, model, load)
        kept = np.stack([known[key] for key in queries])
        log.check_lease()
        log.storage.write_atomic(QUERY_VECTORS, Learned.of([*queries], kept).to_bytes())
    return np.stack([known[key] for key in keys])


def query_key(search: SearchSpec, model: ModelRecord) -> str:
    """A fingerprint of a query and of the model that embeds it."""
    image = search.image and hashlib.sha256(_read(search)).hexdigest()
    return fingerprint_of([model.fingerprint, search.text, image, search.image_id])


def _remembered(log: Collection) -> dict[str, Vectors]:
    try:
        known = Learned.from_bytes(log.storage.read(QUERY_VECTORS))
    except (FileNotFoundError, ValueError):  # they can be made again
        return {}
    return dict(zip(known.names, known.array, strict=True))


def _embed(queries: Mapping[str, SearchSpec], live: LiveRows, model: ModelRecord, load: Load) -> dict[str, Vectors]:
    texts = {key: search for key, search in queries.items() if search.text}
    vectors = dict[str, Vectors]()
    if texts:
        vectors |= zip(texts, load(model).embed_texts([str(search.text) for search in texts.values()]), strict=True)
    stored = stored_vectors(live, [search.image_id for search in queries.values() if search.image_id])
    for key, search in queries.items():
        if search.image:
            vectors[key] = load(model).embed_images(_decode(search, load(model).crop)[np.newaxis])[0]
        elif search.image_id:
            vectors[key] = stored[search.image_id]
    return vectors


def _read(search: SearchSpec) -> bytes:
    try:
        return Path(str(search.image)).expanduser().read_bytes()
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no such ~user
        raise UsageError(f"the picture of the search {search.name!r} cannot be read: {error}") from error


def _decode(search: SearchSpec, crop: CropSpec) -> npt.NDArray[np.uint8]:
    try:
        return decode_image(_read(search), crop, limits=ACCEPTED_LIMITS).pixels
    except ImageError as error:
        raise UsageError(f"the picture of the search {search.name!r}, {search.image}: {error}") from error
