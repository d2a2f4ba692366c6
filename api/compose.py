"""Puts a service together from settings: the one place where the server's parts are chosen."""

from dataclasses import replace

from api.embedding_cache import EmbeddingCache
from api.service import SearchService
from api.settings import ServeSettings
from api.swap import IndexSource
from embedder.fetch import Fetcher, FetchPolicy
from embedder.images import ImageLimits
from embedder.protocol import Embedder
from index.collection import Collection
from index.records import ModelRecord
from index.versions import open_last_good


def build_service(settings: ServeSettings, *, query_policy: FetchPolicy | None = None) -> SearchService:
    """Open the collection's live index, or the last good one before it, and load its model (or `settings.model`).

    `query_policy` says what queries may name: by default public web addresses alone, whoever asks.

    Raises CollectionError, ModelError, OtherModelError.
    """
    collection = Collection.open(settings.collection)
    searcher = open_last_good(collection)
    # Imported late: torch takes seconds, which a mistyped collection should not cost.
    from embedder.model import ClipEmbedder

    # A URL may bring as much as an upload, and no more.
    untrusted = replace(FetchPolicy.for_untrusted_urls(settings.allowed_hosts), max_bytes=settings.max_upload_bytes)

    def load(model: str, revision: str | None) -> Embedder:
        return ClipEmbedder.load(model, revision=revision, device=settings.device, threads=settings.threads)

    first = searcher.model
    recorded = first.revision if settings.model is None else None
    model, revision = settings.model or first.id, settings.revision or recorded

    def load_recorded(record: ModelRecord) -> Embedder:
        # What the settings say is where to find the model of the index that they were made for.
        return load(model, revision) if record.fingerprint == first.fingerprint else load(record.id, record.revision)

    return SearchService(
        embedder=load(model, revision),
        searcher=searcher,
        source=IndexSource(collection=collection, load_model=load_recorded, interval_s=settings.swap_interval_s),
        query_fetcher=Fetcher(query_policy or untrusted),
        picture_fetcher=Fetcher(FetchPolicy()),
        cache=EmbeddingCache(settings.embedding_cache_bytes),
        query_limits=ImageLimits(max_bytes=settings.max_upload_bytes),
    )
