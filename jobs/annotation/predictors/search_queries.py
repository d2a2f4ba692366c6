"""The vectors of saved searches' queries, which are embedded once and remembered beside the annotation's runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

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
from jobs.errors import UsageError
from jobs.indexing.query_texts import stored_vectors
from jobs.search_spec import SearchSpec
from jobs.values import fingerprint_of

Load: TypeAlias = Callable[[ModelRecord], Embedder]


def embed_queries(
    searches: Sequence[SearchSpec], collection: Collection, live: LiveRows | None, model: ModelRecord, load: Load
) -> tuple[dict[str, Vectors], dict[str, str]]:
    """The vectors of queries, `(dim,)` float32, by their `query_key`; and why others have none, by the names of their
    searches. The model is loaded only for new queries. Without `live` rows, ids may have yet to come.
    """
    known = _remembered(annotation_log(collection, SEARCHES))
    ids = [each.image_id for each in searches if each.image_id and query_key(each, model) not in known]
    stored = stored_vectors(live, ids) if live and ids else {}
    vectors, broken = dict[str, Vectors](), dict[str, str]()
    for search in searches:
        try:
            key = query_key(search, model)
            if key in known:
                vectors[key] = known[key]
            elif search.image_id in stored:
                vectors[key] = stored[search.image_id]
            elif not search.image_id:
                vectors[key] = _embed(search, load(model))
            elif live:
                raise UsageError(
                    f"the search {search.name!r} has image_id {search.image_id!r}, which is not in the collection: "
                    "expected an id as `likeness search` shows them"
                )
        except UsageError as error:
            broken[search.name] = str(error)
    return vectors, broken


def remember(collection: Collection, vectors: Mapping[str, Vectors]) -> None:
    """Keep the vectors of queries for later jobs, unless they are kept already."""
    log = annotation_log(collection, SEARCHES)
    if vectors.keys() - _remembered(log).keys():
        log.check_lease()
        log.storage.write_atomic(QUERY_VECTORS, Learned.of([*vectors], np.stack([*vectors.values()])).to_bytes())


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


def _embed(search: SearchSpec, embedder: Embedder) -> Vectors:
    try:
        if search.text:
            vectors = embedder.embed_texts([search.text])
        else:
            picture = decode_image(_read(search), embedder.crop, limits=ACCEPTED_LIMITS)
            vectors = embedder.embed_images(picture.pixels[np.newaxis])
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
