"""The vectors of saved searches' queries, which are embedded once and remembered beside the annotation's runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from embedder.errors import Rejected, UnsupportedInputError
from embedder.images.decode import decode_image
from embedder.images.limits import ACCEPTED_LIMITS
from embedder.protocol import Embedder
from index.arrays import Vectors
from index.collection import Collection
from index.collection.annotations import annotation_log
from index.collection.layout import QUERY_VECTORS
from index.collection.live_rows import LiveRows
from index.collection.records.learned import Learned
from index.collection.records.model_record import ModelRecord
from index.matches import SEARCHES
from jobs.embedding.model_source import Load
from jobs.errors import UsageError
from jobs.indexing.query_texts import stored_vectors
from jobs.search_spec import SearchSpec
from jobs.values import fingerprint_of


@dataclass(frozen=True, kw_only=True)
class Queries:
    """The queries of saved searches. `keys` are fingerprints of a query and of the model, by the names of the searches;
    `vectors`, `(dim,)` float32, are by key; `broken` says why a search will not work, by its name.
    """

    keys: dict[str, str] = field(default_factory=dict)
    vectors: dict[str, Vectors] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


def embed_queries(
    searches: Sequence[SearchSpec], collection: Collection, live: LiveRows | None, model: ModelRecord, load: Load
) -> Queries:
    """The model is loaded only for new queries. Without `live` rows, ids may have yet to come, and have no vectors."""
    known, queries = _remembered(annotation_log(collection, SEARCHES)), Queries()
    ids = [each.image_id for each in searches if each.image_id and _key(each, model) not in known]
    stored = stored_vectors(live, ids) if live and ids else {}
    for search in searches:
        try:
            picture = _read(search) if search.image else None
            key = queries.keys[search.name] = _key(search, model, picture)
            if key in known:
                queries.vectors[key] = known[key]
            elif search.image_id in stored:
                queries.vectors[key] = stored[search.image_id]
            elif not search.image_id:
                queries.vectors[key] = _embed(search, picture, load(model))
            elif live:
                raise UsageError(
                    f"the search {search.name!r} has image_id {search.image_id!r}, which is not in the collection: "
                    "expected an id as `likeness search` shows them"
                )
        except UsageError as error:
            queries.broken[search.name] = str(error)
    return queries


def remember(collection: Collection, vectors: Mapping[str, Vectors]) -> None:
    """Keep the vectors of queries for later jobs, unless they are kept already."""
    log = annotation_log(collection, SEARCHES)
    if vectors.keys() - _remembered(log).keys():
        log.check_lease()
        log.storage.write_atomic(QUERY_VECTORS, Learned.of([*vectors], np.stack([*vectors.values()])).to_bytes())


def _remembered(log: Collection) -> dict[str, Vectors]:
    try:
        known = Learned.from_bytes(log.storage.read(QUERY_VECTORS))
    except (FileNotFoundError, ValueError):  # they can be made again
        return {}
    return dict(zip(known.names, known.array, strict=True))


def _key(search: SearchSpec, model: ModelRecord, picture: bytes | None = None) -> str:
    image = None if picture is None else hashlib.sha256(picture).hexdigest()
    return fingerprint_of([model.fingerprint, search.text, image, search.image_id])


def _embed(search: SearchSpec, picture: bytes | None, embedder: Embedder) -> Vectors:
    try:
        if picture is None:
            vectors = embedder.embed_texts([str(search.text)])
        else:
            decoded = decode_image(picture, embedder.crop, limits=ACCEPTED_LIMITS)
            vectors = embedder.embed_images(decoded.pixels[np.newaxis])
    except UnsupportedInputError as error:
        raise UsageError(f"the search {search.name!r} is by words: {error}; show a picture instead") from error
    except Rejected as error:  # by the decoder, or by the user's own class
        raise UsageError(f"the picture of the search {search.name!r}, {search.image}: {error}") from error
    vector: Vectors = vectors[0]
    return vector


def _read(search: SearchSpec) -> bytes:
    try:
        return Path(str(search.image)).expanduser().read_bytes()
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no such ~user
        raise UsageError(f"the picture of the search {search.name!r} cannot be read: {error}") from error
