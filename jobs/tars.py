"""WebDataset tars: images with their sidecars (.json, .txt, .cls), named by byte ranges that any reader can fetch."""

import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from jobs.errors import SourceError
from jobs.files import SourceFile, extension, hidden, text
from jobs.listing import Column, listing_table

SIDECARS = ("json", "txt", "cls")
MAX_SIDECAR_BYTES = 1_000_000


def list_tars(files: list[SourceFile], extensions: Sequence[str]) -> pa.Table:
    """One row per image in the tars; what its sidecars say becomes metadata."""
    rows = [row for file in files for row in _images(file, extensions)]
    names = dict.fromkeys(name for row in rows for name in row["metadata"])
    metadata = {name: _column([row["metadata"].get(name) for row in rows]) for name in names}
    columns = {name: [row[name] for row in rows] for name in ("image_id", "uri", "size", "modified")}
    return listing_table(columns, metadata)


def _images(file: SourceFile, extensions: Sequence[str]) -> Iterator[dict[str, Any]]:
    images: list[tuple[str, tarfile.TarInfo]] = []
    sidecars: dict[str, dict[str, Any]] = {}
    try:
        with (
            file.filesystem.open_input_file(file.path) as source,
            tarfile.open(fileobj=source, mode="r:") as tar,
        ):
            for member in tar:
                if not member.isfile() or hidden(member.name):
                    continue
                key = _key(member.name)
                if extension(member.name) in extensions:
                    images.append((key, member))
                elif extension(member.name) in SIDECARS and member.size <= MAX_SIDECAR_BYTES:
                    content = tar.extractfile(member)
                    data = content.read() if content else b""
                    sidecars.setdefault(key, {}).update(_sidecar(extension(member.name), data))
    except (tarfile.TarError, OSError, UnicodeError) as error:
        raise SourceError(f"cannot read {file.uri} as an uncompressed tar: {error}") from error
    for key, member in images:
        yield {
            "image_id": f"{file.name}/{text(member.name)}",
            "uri": f"{file.uri}#bytes={member.offset_data}-{member.offset_data + member.size - 1}",
            "size": member.size,
            "modified": file.modified,
            "metadata": sidecars.get(key, {}),
        }


def _key(name: str) -> str:
    """WebDataset's key: the path up to the first dot of the file's name."""
    path = PurePosixPath(name)
    return str(path.with_name(path.name.split(".")[0] or path.name))


def _sidecar(kind: str, data: bytes) -> dict[str, Any]:
    """A sidecar that cannot be read leaves its image without that metadata; it does not cost the image."""
    content = data.decode("utf-8", errors="replace").strip()
    if kind != "json":
        return {kind: content}
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {"json": value}


def _column(values: list[Any]) -> Column:
    """An array of the type that all values share, else of strings."""
    try:
        column: Column = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError):
        column = pa.array([None if v is None else text(v) if isinstance(v, str) else json.dumps(v) for v in values])
    return column
