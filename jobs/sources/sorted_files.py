"""The files of a source, sorted by kind."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from index.collection.layout import MEMBERS
from index.collection.rows import TEXT
from jobs.file_extensions import TABLE_EXTENSIONS, VIDEO_EXTENSIONS, kind_of_other
from jobs.sources.files import SourceFile, file_listing
from jobs.sources.listing import UNREADABLE, Refused
from jobs.sources.stored_listing import ROWS, ListingWriter

_BATCH, _IN_MEMORY = 2**15, 2**18
_RUN = re.compile(r"(?P<collection>(?:.*/)?)runs/[^/]+/started\.json", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class SortedFiles:
    """The files of a source: its pictures and texts; the others by name; the folders that cannot be listed; and the
    number of other files by kind.
    """

    images: "ManyFiles"
    texts: "ManyFiles"
    videos: list[SourceFile]
    tars: list[SourceFile]
    tables: list[SourceFile]
    refused: list[Refused]
    left_out: Counter[str]

    @property
    def containers(self) -> frozenset[str]:
        """The paths of tars and videos, without extension, and of folders with pictures."""
        files = (str(PurePosixPath(file.name).with_suffix("")) for file in (*self.tars, *self.videos))
        return frozenset([*filter(None, self.images.folders), *files])

    @classmethod
    def of(cls, files: Iterable[SourceFile], extensions: Sequence[str]) -> "SortedFiles":
        images, texts = ManyFiles(), ManyFiles()
        videos, tars, tables, refused = list[SourceFile](), list[SourceFile](), list[SourceFile](), list[Refused]()
        left_out, reasons = Counter[str](), dict[str, str]()
        for file in files:
            kind = file.kind
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
        for each in (images, texts):
            each.leave_out(reasons, left_out)
        return cls(
            images=images,
            texts=texts,
            videos=_without(videos, reasons, left_out),
            tars=_without(tars, reasons, left_out),
            tables=_without(tables, reasons, left_out),
            refused=refused,
            left_out=left_out,
        )


class ManyFiles:
    """Files as a listing. At most `_BATCH` are in memory as objects, and `_IN_MEMORY` as rows; there may be millions.
    `folders` counts the files of each.
    """

    def __init__(self) -> None:
        self._files, self._batches, self._writer = list[SourceFile](), list[pa.Table](), ListingWriter()
        self.folders = Counter[str | None]()

    def __len__(self) -> int:
        return self.folders.total()

    def append(self, file: SourceFile) -> None:
        self._files.append(file)
        if len(self._files) == _BATCH:
            self._list()

    def _list(self) -> None:
        found = file_listing(self._files)
        self._files.clear()
        self.folders.update(found["folder"].to_pylist())
        self._batches.append(found)
        if len(self._batches) == _IN_MEMORY // _BATCH:
            self._store()

    def _store(self) -> None:
        for batch in self._batches:
            self._writer.add(batch)
        self._batches.clear()

    def leave_out(self, reasons: Mapping[str, str], left_out: Counter[str]) -> None:
        """Once all files are known: leave out those in folders with a reason."""
        self._list()
        found = {folder: reason for folder in self.folders if reasons and (reason := _reason(folder, reasons))}
        for folder, reason in found.items():
            left_out[reason] += self.folders.pop(folder)

    def tables(self) -> Iterator[pa.Table]:
        """A listing of the files, sorted by id."""
        if self._writer.rows:
            self._store()
            listing = self._writer.listing()
            found = listing.catalog.read(listing.schema, f"{listing.view} ORDER BY image_id", ROWS)
        else:
            files = pa.concat_tables(self._batches)
            found = iter([files.take(pc.sort_indices(files["image_id"]))])
        folders = pa.array(self.folders, TEXT)
        for table in found:
            yield table.filter(pc.is_in(table["folder"], value_set=folders))


def _reasons_below(name: str) -> Iterator[tuple[str, str]]:
    """The folders, or files, that this file says to leave out, with the reason. A `.nomedia` at the source's root says
    nothing: the user has named this folder.
    """
    if name.endswith("/.nomedia"):
        yield name.removesuffix("/.nomedia"), "in folders with .nomedia"
    elif name.endswith("/started.json") and (run := _RUN.fullmatch(name)):
        yield from ((f"{run['collection']}{part}", "in a collection") for part in MEMBERS)


def _reason(path: str | None, reasons: Mapping[str, str]) -> str | None:
    while path:
        if path in reasons:
            return reasons[path]
        path = path.rpartition("/")[0]
    return None


def _without(files: list[SourceFile], reasons: Mapping[str, str], left_out: Counter[str]) -> list[SourceFile]:
    """The files by name, without those in folders with a reason."""
    found = [(file, _reason(file.name, reasons)) for file in sorted(files, key=lambda file: file.name)]
    left_out.update(reason for _, reason in found if reason)
    return [file for file, reason in found if not reason]
