"""Puts a service together from settings: the one place where the server's parts are chosen."""

from dataclasses import replace

from api.service import SearchService
from api.settings import ServeSettings
from embedder.fetch import Fetcher, FetchPolicy
from embedder.images import ImageLimits
from index.collection import Collection
from index.versions import open_last_good


def build_service(settings: ServeSettings, *, query_policy: FetchPolicy | None = None) -> SearchService:
    """Open the collection's live index, or the last good one before it, and load its model (or `settings.model`).

    `query_policy` says what queries may name: by default public web addresses alone, whoever asks.

    Raises CollectionError, ModelError, OtherModelError.
    """
    searcher = open_last_good(Collection.open(settings.collection))
    # Imported late: torch takes seconds, which a mistyped collection should not cost.
    from embedder.model import ClipEmbedder

    # A URL may bring as much as an upload, and no more.
    untrusted = replace(FetchPolicy.for_untrusted_urls(settings.allowed_hosts), max_bytes=settings.max_upload_bytes)
    recorded = searcher.model.revision if settings.model is None else None
    embedder = ClipEmbedder.load(
        settings.model or searcher.model.id,
        revision=settings.revision or recorded,
        device=settings.device,
        threads=settings.threads,
    )
    return SearchService(
        embedder=embedder,
        searcher=searcher,
        query_fetcher=Fetcher(query_policy or untrusted),
        picture_fetcher=Fetcher(FetchPolicy()),
        query_limits=ImageLimits(max_bytes=settings.max_upload_bytes),
    )
