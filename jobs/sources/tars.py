"""WebDataset tars: images with their sidecars (.json, .txt, .cls), located by byte ranges that any reader can fetch."""

import json
import tarfile
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from jobs.errors import SourceError
from jobs.sources.files import SourceFile, extension, is_hidden
from jobs.sources.listing import column_of, escaped, listing_table

SIDECARS = ("json", "txt", "cls")
MAX_SIDECAR_BYTES = 1_000_000


def list_tar(file: SourceFile, extensions: Sequence[str]) -> pa.Table:
    """One row per image in a tar, with its sidecars as metadata. Of members with the same name, the last one counts."""
    images: dict[str, tuple[str, tarfile.TarInfo]] = {}
    sidecars: dict[str, dict[str, dict[str, Any]]] = {}
    try:
        with file.open(min_read=0) as source, tarfile.open(fileobj=source, mode="r:") as tar:  # headers have 512 bytes
            for member in tar:
                if not member.isfile() or is_hidden(member.name):
                    continue
                key, kind = _key(member.name), extension(member.name)
                if kind in extensions:
                    images[str(PurePosixPath(member.name))] = key, member
                elif kind in SIDECARS and member.size <= MAX_SIDECAR_BYTES:
                    content = tar.extractfile(member)
                    sidecars.setdefault(key, {})[kind] = _sidecar(kind, content.read() if content else b"")
            source.seek(tar.offset)
            if source.read(tarfile.BLOCKSIZE).strip(tarfile.NUL):  # tarfile takes a damaged header for the end
                raise tarfile.ReadError(f"no header at byte {tar.offset}, which is not the end")
    except (tarfile.TarError, OSError, ValueError) as error:  # ValueError: a damaged number in a header
        raise SourceError(f"cannot read {file.uri} as an uncompressed tar: {error}") from error
    members = [member for _, member in images.values()]
    columns: dict[str, Sequence[Any]] = {
        "image_id": [f"{file.name}/{escaped(member.name)}" for member in members],
        "uri": [f"{file.uri}#bytes={each.offset_data}-{each.offset_data + each.size - 1}" for each in members],
        "size": [member.size for member in members],
        "modified": [file.modified] * len(members),
    }
    metadata = [
        {name: value for sidecar in sidecars.get(key, {}).values() for name, value in sidecar.items()}
        for key, _ in images.values()
    ]
    names = dict.fromkeys(name for each in metadata for name in each)
    return listing_table(columns, {name: column_of([each.get(name) for each in metadata]) for name in names})


def _key(name: str) -> str:
    """WebDataset's key: the path up to the first dot of the file's name."""
    path = PurePosixPath(name)
    return str(path.with_name(path.name.split(".")[0] or path.name))


def _sidecar(kind: str, data: bytes) -> dict[str, Any]:
    """The metadata of a sidecar; empty if it cannot be read, so the image is still embedded."""
    content = data.decode("utf-8", errors="replace").strip()
    if kind != "json":
        return {kind: content}
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return {escaped(name): part for name, part in value.items()} if isinstance(value, dict) else {"json": value}
