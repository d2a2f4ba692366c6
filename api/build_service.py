"""Builds services from settings. Only this module chooses the server's parts."""

from collections.abc import Container, Mapping
from dataclasses import replace
from functools import partial

from api.search.batcher import EmbeddingCache
from api.search.collections import ClosedCollection, Collections
from api.search.engine import Batchers, LiveEngine, LoadModel, UnknownModel, require_same_model
from api.search.pictures import Pictures
from api.search.service import SearchService
from api.settings import ServeSettings
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from embedder.identity import Precision
from embedder.images.decoder_pool import DecodePool
from embedder.images.limits import ImageLimits
from embedder.models.load import find_known_model, find_model, load_embedder
from embedder.protocol import Embedder
from index.collection import Collection
from index.collection.find import find_collections
from index.collection.records.model_record import ModelRecord
from index.errors import CollectionError
from index.search import Searcher
from index.search.searcher import OpenVersion
from index.storage.picture_reader import PictureReader
from index.versions.servable import live_manifest, open_last_good


def build_collections(
    settings: ServeSettings, *, load_model: LoadModel | None = None, open_version: OpenVersion = Searcher.open
) -> Collections:
    """The collections of `settings`: a single one is opened at once, several on first use.

    Raises CollectionError for a location without a collection, and for a single collection like `build_service`.
    """
    collections = served_collections(settings)
    parts = _SharedParts(settings, open_version)
    if len(collections) == 1:
        [(name, collection)] = collections.items()
        return Collections.of(parts.service(collection, load_model), name)
    load_model = load_model or model_loader(settings, first_model(collections))
    return Collections(
        {
            name: ClosedCollection(collection=collection, open=partial(parts.service, collection, load_model))
            for name, collection in collections.items()
        },
        batchers=parts.batchers,
        decoders=parts.pictures.decoders,
        idle_s=settings.collection_idle_s,
        max_memory=settings.max_memory,
    )


def build_service(settings: ServeSettings, *, load_model: LoadModel | None = None) -> SearchService:
    """Open the collection's live index, or the last good one before it, and load its model (or `settings.model`).

    `load_model` loads the model, by default in this process. Queries may only have URLs of public web addresses and of
    `settings.allowed_hosts`.

    Raises CollectionError, ModelError, OtherModelError.
    """
    return _SharedParts(settings, Searcher.open).service(Collection.open(settings.collection), load_model)


class _SharedParts:
    """The models, caches, decoders and fetchers that the services of several collections share."""

    def __init__(self, settings: ServeSettings, open_version: OpenVersion) -> None:
        self._settings = settings
        self._open_version = open_version
        self.batchers = Batchers(EmbeddingCache(settings.embedding_cache_bytes))
        decoders = DecodePool(
            settings.cores(settings.replicas),
            timeout_s=settings.decode_timeout_s,
            max_wait_s=settings.decode_timeout_s,
            # Each, large or heavy, takes the slot of a search; this leaves most slots to other requests.
            max_waiting=settings.limits().max_searches // 6,
        )
        self.pictures = Pictures(Fetcher(FetchPolicy(), buckets=PictureReader()), decoders)
        # Pictures from URLs have the same maximum size as uploads.
        untrusted = FetchPolicy.for_untrusted_urls(settings.allowed_hosts)
        self._query_fetcher = Fetcher(replace(untrusted, max_bytes=settings.max_upload_bytes))

    def service(self, collection: Collection, load_model: LoadModel | None) -> SearchService:
        settings = self._settings
        searcher = open_last_good(collection, self._open_version)
        live = LiveEngine(
            searcher,
            load_model or model_loader(settings, searcher.model),
            batchers=self.batchers,
            collection=collection,
            open_version=self._open_version,
            interval_s=settings.swap_interval_s,
        )
        return SearchService(
            live=live,
            query_fetcher=self._query_fetcher,
            pictures=self.pictures,
            query_limits=ImageLimits(max_bytes=settings.max_upload_bytes, max_pixels=settings.max_query_pixels),
        )


def served_collections(settings: ServeSettings) -> dict[str, Collection]:
    """The collections by name. Raises CollectionError for a location without one, and if two have the same name."""
    return find_collections([settings.collection, *settings.more_collections])


def first_model(collections: Mapping[str, Collection]) -> ModelRecord | None:
    """The model whose new location is the settings' `model`: that of the first collection with a readable index."""
    for collection in collections.values():
        try:
            if live := live_manifest(collection):
                return live.model
        except (CollectionError, OSError):  # reported when the collection is opened
            continue
    return None


def model_loader(settings: ServeSettings, first: ModelRecord | None) -> LoadModel:
    """A function that loads models into this process. `settings` give the location of the `first` one; others are
    loaded from where their records say. Raises ModelError if a class that it may use cannot be imported.
    """
    for name in settings.embedder:
        find_model(name, allowed=settings.embedder)

    def load(record: ModelRecord) -> Embedder:
        is_first = first is None or record.fingerprint == first.fingerprint
        return load_recorded(
            record,
            model=settings.model if is_first else None,
            revision=settings.revision if is_first else None,
            allowed=settings.embedder,
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
    allowed: Container[str | None] = (),
    device: str | None = None,
    precision: Precision = "auto",
    threads: int | None = None,
) -> Embedder:
    """The model that made the vectors of an index. `model` is its new location, if it has moved; a user's own class
    must be among `allowed`. For an unknown model the result embeds nothing.

    Raises ModelError, OtherModelError.
    """
    if record.is_unknown:
        return UnknownModel(record)
    source = find_known_model(record.id, record.revision, model=model, revision=revision, allowed=allowed)
    require_same_model(source.identity, record)  # before it is converted, which takes half a minute
    return load_embedder(source, device=device, precision=precision, threads=threads)
