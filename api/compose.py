"""Puts a service together from settings: the one place where the server's parts are chosen."""

from collections.abc import Callable
from dataclasses import replace

from api.search.batcher import EmbeddingCache
from api.search.engine import IndexSource, UnknownModel, require_same_model
from api.search.service import SearchService
from api.settings import ServeSettings
from embedder.errors import ModelError
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from embedder.identity import Precision
from embedder.images.decoder_pool import DecodePool
from embedder.images.limits import ImageLimits
from embedder.models.checkpoint import Checkpoint
from embedder.models.load import find_model, load_embedder
from embedder.models.own import OwnModel
from embedder.protocol import Embedder
from embedder.python_class import is_class_name
from index.collection import Collection
from index.collection.records import ModelRecord
from index.search import Searcher
from index.search.searcher import OpenVersion, open_last_good
from index.storage.picture_reader import PictureReader

LoadModel = Callable[[ModelRecord], Embedder]
"""Loads the model that an index version records."""


def build_service(
    settings: ServeSettings, *, load_model: LoadModel | None = None, open_version: OpenVersion = Searcher.open
) -> SearchService:
    """Open the collection's live index, or the last good one before it, and load its model (or `settings.model`).

    `load_model` loads it, and `open_version` opens this index version and later ones; by default both do so in this
    process. URLs of queries may name only public web addresses and `settings.allowed_hosts`.

    Raises CollectionError, ModelError, OtherModelError.
    """
    collection = Collection.open(settings.collection)
    searcher = open_last_good(collection, open_version)
    load_model = load_model or model_loader(settings, searcher.model)
    # A URL may lead to as many bytes as an upload may have.
    untrusted = replace(FetchPolicy.for_untrusted_urls(settings.allowed_hosts), max_bytes=settings.max_upload_bytes)
    decoders = DecodePool(
        settings.cores(settings.replicas),
        timeout_s=settings.decode_timeout_s,
        max_wait_s=settings.decode_timeout_s,
        # Each holds the place of a search: most are left to other requests.
        max_waiting=settings.limits().max_searches // 4,
    )
    return SearchService(
        embedder=load_model(searcher.model),
        searcher=searcher,
        source=IndexSource(
            collection=collection, load_model=load_model, open_version=open_version, interval_s=settings.swap_interval_s
        ),
        query_fetcher=Fetcher(untrusted),
        picture_fetcher=Fetcher(FetchPolicy(), buckets=PictureReader()),
        cache=EmbeddingCache(settings.embedding_cache_bytes),
        query_limits=ImageLimits(max_bytes=settings.max_upload_bytes, max_pixels=settings.max_query_pixels),
        decoders=decoders,
    )


def model_loader(settings: ServeSettings, first: ModelRecord | None) -> LoadModel:
    """A function that loads models into this process. `settings` name the place of the `first` one, or its class;
    others are where their records say.
    """

    def load(record: ModelRecord) -> Embedder:
        named = first is None or record.fingerprint == first.fingerprint
        return load_recorded(
            record,
            model=settings.model if named else None,
            revision=settings.revision if named else None,
            embedder=settings.embedder if named or is_class_name(record.id) else None,
            device=settings.device,
            precision=settings.precision,
            threads=settings.threads,
        )

    return load


def load_recorded(
    record: ModelRecord,
    *,
    model: str | None = None,
    revision: str | None = None,
    embedder: str | None = None,
    device: str | None = None,
    precision: Precision = "auto",
    threads: int | None = None,
) -> Embedder:
    """The model that made the vectors of an index. `model` says where it is now, if it has moved; a class of the user's
    own has to be named as `embedder`. An unknown model is one that embeds nothing.

    Raises ModelError, OtherModelError.
    """
    if embedder is not None and model is not None:
        raise ModelError(f"expected one of model and embedder, got {model} and {embedder}")
    if record.is_unknown:
        return UnknownModel(record)
    place, revision = model or record.id, revision or (record.revision if model is None else None)
    found: str | Checkpoint | OwnModel = place
    if model is not None or embedder is not None or is_class_name(place):
        found = find_model(place, revision, embedder=embedder)
        require_same_model(found.identity, record)  # before it is converted, which takes half a minute
    if isinstance(found, OwnModel):
        return found()
    return load_embedder(found, revision=revision, device=device, precision=precision, threads=threads)
