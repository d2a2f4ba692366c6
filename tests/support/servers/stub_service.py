"""What metrics read of a service, without the service."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any


def stub_service() -> Any:
    """Index version 000007 of two hours ago. The live one cannot be served."""
    built = datetime.now(UTC) - timedelta(hours=2)
    engine = SimpleNamespace(
        embedder=SimpleNamespace(identity=SimpleNamespace(model_id="demo")),
        searcher=SimpleNamespace(version="000007", ntotal=2_000, manifest=SimpleNamespace(created_at=built)),
        batcher=SimpleNamespace(waiting=3),
    )
    return SimpleNamespace(
        engine=engine,
        live=SimpleNamespace(swaps=4, failed_swaps=1, failure="damaged"),
        cache=SimpleNamespace(hits=5, misses=8),
        on_batch=[],
    )
