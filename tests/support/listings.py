"""Writes sources, and reads listings of them."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedder.fetch import Fetcher
from index.storage.picture_reader import PictureReader
from jobs.sources.listing import LISTING

FIXED_PART = LISTING.names


def put(path: Path, data: bytes = b"picture") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def metadata(listing: pa.Table) -> dict[str, list[Any]]:
    assert listing.schema.names[: len(FIXED_PART)] == FIXED_PART
    return listing.select(listing.schema.names[len(FIXED_PART) :]).to_pydict()


def ids(listing: pa.Table) -> list[Any]:
    return listing["image_id"].to_pylist()


def uris(listing: pa.Table) -> list[Any]:
    return listing["uri"].to_pylist()


def fetched(listing: pa.Table) -> list[bytes]:
    fetcher = Fetcher(buckets=PictureReader())
    return [fetcher.fetch(uri) for uri in uris(listing)]


def refused(listing: pa.Table) -> dict[str, tuple[str, str]]:
    """Reason and message of each row that the listing refuses, by its id."""
    if "error_reason" not in listing.column_names:
        return {}
    assert set(listing.filter(listing["error_reason"].is_valid())["error_stage"].to_pylist()) == {"list"}
    rows = listing.select(["image_id", "error_reason", "error_message"]).to_pylist()
    return {row["image_id"]: (row["error_reason"], row["error_message"]) for row in rows if row["error_reason"]}


def parquet(**columns: Any) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target)
    return target.getvalue()
