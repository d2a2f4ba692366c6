"""Writes sources, and reads listings of them."""

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedder.fetch import Fetcher
from index.storage.picture_reader import PictureReader
from jobs.sources import list_images as listing_of_images
from jobs.sources.listing import LISTING, REFUSAL

FIXED_PART = LISTING.names
PICTURE = b"picture"


def put(path: Path, data: bytes = PICTURE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def list_images(location: str, **options: Any) -> pa.Table:
    """The listing as one table, with the columns of `REFUSAL` if it refuses rows."""
    listing = listing_of_images.list_images(location, **options)
    refusal = REFUSAL.names if listing.count("error_reason IS NOT NULL") else []
    return listing.read([*listing.schema.names, *refusal])


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


def write_files(folder: Path, files: Mapping[str, bytes | str] | Iterable[str]) -> Path:
    """Write these files below the folder, which is made if there are none; those without content hold `PICTURE`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (files if isinstance(files, Mapping) else dict.fromkeys(files, PICTURE)).items():
        put(folder / name, content.encode() if isinstance(content, str) else content)
    return folder


def write_list(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write these rows as a list of the kind that the extension says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
        path.write_text("\n".join([",".join(rows[0]), *lines]))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def tar_of(*members: str, **contents: bytes) -> bytes:
    """A tar of these members, which hold `PICTURE`; a name in `contents` has `__` for its dot."""
    target = io.BytesIO()
    named = {**dict.fromkeys(members, PICTURE), **{name.replace("__", "."): data for name, data in contents.items()}}
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, data in named.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return target.getvalue()
