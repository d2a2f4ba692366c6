"""WebDataset tars: images with their sidecars (.json, .txt, .cls), located by byte ranges that any reader can fetch."""

import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from threading import Event
from typing import Any

import pyarrow as pa

from embedder.fetch.uris import member_uri
from jobs.errors import SourceError
from jobs.exclusions import EXCLUDED, Exclusions
from jobs.file_extensions import kind_of_other
from jobs.sources.beside import MAX_SIDECAR_BYTES
from jobs.sources.files import SourceFile, extension
from jobs.sources.listing import Listed, column_of, escaped, listing_table
from jobs.sources.text_encoding import captions

SIDECARS = ("json", "txt", "cls")
_BY_DEFAULT = Exclusions()
_AFTER_END = "data after the end of tars"
_MIN_READ = 1 << 20
"""Minimum bytes of a request to a bucket: in most tars many headers, of 512 bytes each, and to transfer them takes no
longer than a server takes to answer.
"""


def list_tar(file: SourceFile, extensions: Sequence[str], exclusions: Exclusions, stopped: Event) -> Listed:
    """One row per image in a tar, with its sidecars as metadata. Of members with the same name, the last one counts.
    If several tars were concatenated in one file, all are read. Nobody needs the result once `stopped` is set.
    """
    images: dict[str, tuple[str, tarfile.TarInfo]] = {}
    sidecars: dict[tuple[str, str], bytes] = {}
    left_out, notes = Counter[str](), dict[str, list[str]]()
    try:
        with file.open(min_read=_MIN_READ) as source:
            for tar, member in _members(source, left_out):
                if stopped.is_set():
                    break
                key, kind, name = _key(member.name), extension(member.name), str(PurePosixPath(member.name))
                if reason := _reason(member, file.name, exclusions):
                    left_out[reason] += 1
                elif kind in extensions:
                    left_out["repeated names"] += name in images
                    images[name] = key, member
                elif kind in SIDECARS and member.size <= MAX_SIDECAR_BYTES:
                    content = tar.extractfile(member)
                    sidecars[key, kind] = content.read() if content else b""
                elif kind in SIDECARS:
                    left_out[f".{kind} of more than 1 MB"] += 1
                else:
                    left_out[kind_of_other(member.name)] += 1
    except (tarfile.TarError, OSError, ValueError) as error:  # ValueError: a damaged number in a header
        raise SourceError(f"cannot read {file.uri} as an uncompressed tar: {error}") from error
    metadata: dict[str, dict[str, Any]] = {}
    texts = captions([*sidecars.values()], [file.name] * len(sidecars), notes)
    for (key, kind), text in zip(sidecars, texts, strict=True):
        sidecar = None if text is None else _sidecar(kind, text)
        left_out[f".{kind} that cannot be read"] += sidecar is None
        metadata.setdefault(key, {}).update(sidecar or {})
    keys = {key for key, _ in images.values()}
    left_out.update(f".{kind}" for key, kind in sidecars if key not in keys)
    counts = {kind if kind == _AFTER_END else f"{kind}, in tars": count for kind, count in (+left_out).items()}
    return Listed(images=_listing(file, [*images.values()], metadata), left_out=Counter(counts), notes=notes)


def _listing(
    file: SourceFile, images: Sequence[tuple[str, tarfile.TarInfo]], sidecars: Mapping[str, Mapping[str, Any]]
) -> pa.Table:
    members = [member for _, member in images]
    columns: dict[str, Sequence[Any]] = {
        "image_id": [f"{file.name}/{escaped(member.name)}" for member in members],
        "uri": [member_uri(file.uri, each.offset_data, each.size) for each in members],
        "size": [member.size for member in members],
        "modified": [file.modified] * len(members),
    }
    metadata = [sidecars.get(key, {}) for key, _ in images]
    names = dict.fromkeys(name for each in metadata for name in each)
    return listing_table(columns, {name: column_of([each.get(name) for each in metadata]) for name in names})


def _members(source: Any, left_out: Counter[str]) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    start: int | None = 0
    while start is not None:
        source.seek(start)
        with tarfile.open(fileobj=source, mode="r:") as tar:
            yield from ((tar, member) for member in tar if not member.isdir())
        source.seek(tar.offset)
        if source.read(tarfile.BLOCKSIZE).strip(tarfile.NUL):  # tarfile takes a damaged header for the end
            raise tarfile.ReadError(f"no header at byte {tar.offset}, which is not the end")
        start = _next_tar(source, tar.offset)
        if start is not None and not _is_tar(source, start):
            left_out[_AFTER_END] += 1
            return


def _is_tar(source: Any, start: int) -> bool:
    source.seek(start)
    try:
        tarfile.TarInfo.frombuf(source.read(tarfile.BLOCKSIZE), tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _next_tar(source: Any, offset: int) -> int | None:
    """The first block at or after `offset` that is not empty; None if there is none."""
    source.seek(offset)
    while data := source.read(_MIN_READ):
        if rest := data.lstrip(tarfile.NUL):
            start = offset + len(data) - len(rest)
            return int(start - start % tarfile.BLOCKSIZE)
        offset += len(data)
    return None


def _reason(member: tarfile.TarInfo, tar: str, exclusions: Exclusions) -> str | None:
    """Why a member is left out, or None."""
    if member.issym() or member.islnk():
        return "links"
    if not member.isreg() or member.issparse():  # the bytes of a sparse file are in several places
        return "devices, pipes and sparse files"
    name = escaped(str(PurePosixPath(member.name)))
    return EXCLUDED if exclusions.excludes(f"{tar}/{name}") else _BY_DEFAULT.reason(name)


def _key(name: str) -> str:
    """WebDataset's key: the path up to the first dot of the file's name."""
    path = PurePosixPath(name)
    return str(path.with_name(path.name.split(".")[0] or path.name))


def _sidecar(kind: str, text: str) -> dict[str, Any] | None:
    """The metadata of a sidecar; None if it cannot be read: the image is still embedded."""
    try:
        value = json.loads(text) if kind == "json" else text
    except (ValueError, RecursionError):
        return None
    return {escaped(name): part for name, part in value.items()} if isinstance(value, dict) else {kind: value}
