"""Reads the tables of a source, which may describe the pictures beside them."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from jobs.errors import NotAListError
from jobs.exclusions import EXCLUDED, Exclusions
from jobs.sources.beside import place, places
from jobs.sources.files import SourceFile, extension
from jobs.sources.list_columns import FILE_NAME, ListColumns
from jobs.sources.listing import LISTING, Column, Listed, Refused
from jobs.sources.tables import TableReader


@dataclass(frozen=True, kw_only=True)
class ListReader:
    """Reads tables one by one. `pictures` is the listing of the picture files of the source, `containers` are the paths
    of its tars, without extension, and of its folders with pictures.
    """

    columns: ListColumns
    exclusions: Exclusions
    notes: dict[str, list[str]]
    pictures: pa.Table
    containers: frozenset[str]

    def read(self, table: SourceFile) -> Listed:
        """The rows of a table that are images. Beside pictures or tars, a table need not be a list of images."""
        kind = extension(table.name)
        try:
            rows, refused = self._list(table)
        except NotAListError:
            if self.columns.uri or not (self.pictures.num_rows or self.containers):
                raise
            return _left_out(f".{kind} without addresses or pictures")
        # As img2dataset writes them: the web addresses from which the pictures of a tar or folder were downloaded.
        if str(PurePosixPath(table.name).with_suffix("")) in self.containers and _are_web_addresses(rows["uri"]):
            return _left_out(f".{kind} with the origins of pictures")
        return self._without_excluded(table, rows, refused)

    def _list(self, table: SourceFile) -> tuple[pa.Table, list[Refused]]:
        """A file beside the list wins over an address, as the bytes do in Parquet."""
        if self.pictures.num_rows and not self.columns.uri:
            with suppress(NotAListError):
                notes: dict[str, list[str]] = {}
                rows, refused = TableReader(table, replace(self.columns, uri=FILE_NAME), notes).read()
                if pc.any(pc.is_in(places(rows["uri"]), value_set=self._places)).as_py():
                    self.notes.update(notes)
                    return rows, refused
        return TableReader(table, self.columns, self.notes).read()

    @cached_property
    def _places(self) -> Column:
        return places(self.pictures["uri"])

    def _without_excluded(self, table: SourceFile, rows: pa.Table, refused: list[Refused]) -> Listed:
        if not self.exclusions.has_patterns:
            return Listed(images=rows, refused=refused)
        root = f"{place(table.uri.removesuffix(table.name))}/"
        addresses = ["" if uri is None else place(uri).removeprefix(root) for uri in rows["uri"].to_pylist()]
        kept = [not self.exclusions.excludes(address.rpartition("://")[2]) for address in addresses]
        excluded = Counter({EXCLUDED: kept.count(False)})
        return Listed(images=rows.filter(pa.array(kept, pa.bool_())), refused=refused, left_out=+excluded)


def _left_out(kind: str) -> Listed:
    return Listed(images=LISTING.empty_table(), left_out=Counter([kind]))


def _are_web_addresses(uris: Column) -> bool:
    return bool(pc.all(pc.match_substring_regex(uris, "^https?://")).as_py())
