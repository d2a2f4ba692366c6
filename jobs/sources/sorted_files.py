"""The files of a source, sorted by kind."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from index.collection.rows import TEXT
from jobs.file_extensions import TABLE_EXTENSIONS, VIDEO_EXTENSIONS, kind_of_other
from jobs.sources.files import SourceFile, extension, file_listing
from jobs.sources.listing import UNREADABLE, Refused

_BATCH = 2**15
_RUN = re.compile(r"(?P<collection>(?:.*/)?)runs/[^/]+/started\.json", re.DOTALL)
_OF_COLLECTION = ("runs", "annotations", "index", "history", "duplicates.jsonl")


@dataclass(frozen=True, kw_only=True)
class SortedFiles:
    """The files of a source: listings of its pictures and texts, sorted by id; the others by name; the folders that
    cannot be listed; and the number of other files by kind.
    """

    images: pa.Table
    texts: pa.Table
    videos: list[SourceFile]
    tars: list[SourceFile]
    tables: list[SourceFile]
    refused: list[Refused]
    left_out: Counter[str]

    @property
    def containers(self) -> frozenset[str]:
        """The paths of tars and videos, without extension, and of folders with pictures."""
        folders = self.images["folder"].unique().to_pylist() if self.tables else []
        files = (str(PurePosixPath(file.name).with_suffix("")) for file in (*self.tars, *self.videos))
        return frozenset([*filter(None, folders), *files])

    @classmethod
    def of(cls, files: Iterable[SourceFile], extensions: Sequence[str]) -> "SortedFiles":
        images, texts = _Listing(), _Listing()
        videos, tars, tables, refused = list[SourceFile](), list[SourceFile](), list[SourceFile](), list[Refused]()
        left_out, reasons = Counter[str](), dict[str, str]()
        for file in files:
            kind = extension(file.name)
            reasons.update(_reasons_below(file.name))
            if file.left_out:
                left_out[file.left_out] += 1
            elif file.problem:
                refused.append(file.refused(UNREADABLE, file.problem))
            elif kind in extensions:
                videos.append(file) if kind in VIDEO_EXTENSIONS else images.append(file)
            elif kind == "tar":
                tars.append(file)
            elif kind in TABLE_EXTENSIONS:
                tables.append(file)
            elif kind == "txt":
                texts.append(file)
            else:
                left_out[kind_of_other(file.name)] += 1
        others = [
            _without(sorted(each, key=lambda file: file.name), reasons, left_out) for each in (videos, tars, tables)
        ]
        return cls(
            images=_without_rows(images.table(), reasons, left_out),
            texts=_without_rows(texts.table(), reasons, left_out),
            videos=others[0],
            tars=others[1],
            tables=others[2],
            refused=refused,
            left_out=left_out,
        )


class _Listing:
    """Files as a listing. At most `_BATCH` are in memory as objects, because there may be millions."""

    def __init__(self) -> None:
        self._files = list[SourceFile]()
        self._batches = [file_listing([])]

    def append(self, file: SourceFile) -> None:
        self._files.append(file)
        if len(self._files) == _BATCH:
            self._batches.append(file_listing(self._files))
            self._files.clear()

    def table(self) -> pa.Table:
        found = pa.concat_tables([*self._batches, file_listing(self._files)])
        return found.take(pc.sort_indices(found["image_id"]))


def _reasons_below(name: str) -> Iterator[tuple[str, str]]:
    """The folders, or files, that this file says to leave out, with the reason. A `.nomedia` at the source's root says
    nothing: the user has named this folder.
    """
    if name.endswith("/.nomedia"):
        yield name.removesuffix("/.nomedia"), "in folders with .nomedia"
    elif name.endswith("/started.json") and (run := _RUN.fullmatch(name)):
        yield from ((f"{run['collection']}{part}", "in a collection") for part in _OF_COLLECTION)


def _reason(path: str | None, reasons: Mapping[str, str]) -> str | None:
    while path:
        if path in reasons:
            return reasons[path]
        path = path.rpartition("/")[0]
    return None


def _without(files: list[SourceFile], reasons: Mapping[str, str], left_out: Counter[str]) -> list[SourceFile]:
    if not reasons:
        return files
    found = [(file, _reason(file.name, reasons)) for file in files]
    left_out.update(reason for _, reason in found if reason)
    return [file for file, reason in found if not reason]


def _without_rows(listing: pa.Table, reasons: Mapping[str, str], left_out: Counter[str]) -> pa.Table:
    folders = listing["folder"].unique().to_pylist() if reasons else []
    found = {folder: reason for folder in folders if (reason := _reason(folder, reasons))}
    for reason in set(found.values()):
        left = [folder for folder in found if found[folder] == reason]
        here = pc.is_in(listing["folder"], value_set=pa.array(left, TEXT))
        kept = listing.filter(pc.invert(here))
        left_out[reason] += len(listing) - len(kept)
        listing = kept
    return listing
