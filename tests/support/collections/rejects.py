"""The rejects of a small collection."""

from typing import Any

from index.collection import Collection
from jobs.planning import rejects


def list_rejects(collection: Collection) -> list[dict[str, Any]]:
    """All of them, images that are left out too, by id."""
    return list(rejects.list_rejects(collection.snapshot().newest()))
