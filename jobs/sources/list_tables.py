"""Tables of image addresses (Parquet, CSV, TSV, JSONL), and Parquet files with image bytes."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embedder.fetch.uris import cell_uri
from index.collection.rows import TEXT
from jobs.errors import NotAListError, SourceError
from jobs.exclusions import EXCLUDED, Exclusions
from jobs.sources.beside import Pictures, place
from jobs.sources.column_types import CSV, JSON, NAME, WRITTEN
from jobs.sources.files import SourceFile
from jobs.sources.list_columns import (
    FILE_NAME,
    ListColumns,
    holds_bytes,
    holds_images,
    paths_without_bytes,
    picture_column,
)
from jobs.sources.listing import (
    LISTING,
    UNNAMED_INDEX,
    WEB,
    Column,
    Listed,
    Refused,
    as_text,
    left_out_note,
    listing_table,
    renaming_notes,
    unnamed_index,
)
from jobs.sources.text_encoding import as_utf8
from jobs.sources.text_lists import read_csv, read_json


@dataclass(frozen=True)
class TableReader:
    """Lists a table, which may name `pictures`. `notes` gets the names of lists by what to say about them."""

    file: SourceFile
    columns: ListColumns
    pictures: Pictures
    notes: dict[str, list[str]] = field(default_factory=dict)

    def read(self) -> Listed:
        """The images of the table, whose metadata have the marks of `column_types`; and its unreadable lines."""
        lines = dict[int, str]()
        match self.file.kind:
            case "parquet":
                images = self._read_parquet()
            case "csv" | "tsv":
                images = self._read_text(CSV, lambda data: read_csv(data, self.columns.uris, lines))
            case "jsonl" | "ndjson":
                texts = {*(name for name, type_ in self.columns.types.items() if type_ == "text"), self.columns.ids}
                images = self._read_text(JSON, lambda data: read_json(data, texts, lines))
        refused = [
            Refused(image_id=f"{self.file.name}#line={line}", uri=None, reason="bad_line", message=problem)
            for line, problem in lines.items()
        ]
        return Listed(images=images, refused=refused, notes=self.notes)

    def _read_text(self, written: bytes, parse: Callable[[bytes], pa.Table]) -> pa.Table:
        def read(source: pa.NativeFile) -> pa.Table:
            data, code_page = as_utf8(source.read(), self.file.uri)
            if code_page:
                self.notes[f"lists are not UTF-8 and were read as {code_page}"] = [self.file.name]
            return parse(data)

        table = self._read_file(read)
        check_names(self.file, table.column_names)
        return self._list_uris(table, written)

    def _read_parquet(self) -> pa.Table:
        def read(source: pa.NativeFile) -> tuple[pa.Table, str | None, int, Column | None]:
            parquet = pq.ParquetFile(source)
            schema, pictures = parquet.schema_arrow, picture_column(parquet, self.columns)
            check_names(self.file, schema.names)
            # Image bytes are not metadata and stay in the file.
            wanted = {self.columns.ids, *self.columns.uris} - {pictures}
            others = [each.name for each in schema if each.name in wanted or not holds_bytes(each.type)]
            addresses = wanted.intersection(schema.names) - {self.columns.ids}
            nested = [
                f"`{each.name}`"
                for each in schema
                if each.name not in others and not pa.types.is_fixed_size_binary(each.type)
            ]
            if pictures is None and not addresses and nested:
                raise SourceError(
                    f"{self.file.uri}: expected one picture in each row, got lists or structs of bytes in "
                    f"{', '.join(nested)}"
                )
            if unread := [name for name in schema.names if name not in (*others, pictures)]:
                self.notes[left_out_note("bytes", unread)] = [self.file.name]
            if pictures and self.columns.uri and self.columns.uri not in schema.names:
                note = f"lists have no column `{self.columns.uri}`, so their pictures in `{pictures}` are taken"
                self.notes[note] = [self.file.name]
            paths = paths_without_bytes(parquet, pictures) if pictures and self.pictures.listing.num_rows else None
            return parquet.read(columns=others).select(others), pictures, parquet.metadata.num_rows, paths

        table, pictures, rows, paths = self._read_file(read)
        return self._list_uris(table) if pictures is None else self._list_cells(table, pictures, rows, paths)

    def _list_uris(self, table: pa.Table, written: bytes | None = None) -> pa.Table:
        file, columns = self.file, self.columns
        uri_column = next((name for name in columns.uris if name in table.column_names), None)
        if uri_column is None:
            or_bytes = ", nor one of image bytes" if file.kind == "parquet" else ""
            raise NotAListError(
                f"{file.uri} has no column {' or '.join(f'`{name}`' for name in columns.uris)}{or_bytes}; its columns "
                f"are {', '.join(table.column_names) or 'none'}. Name the one with paths or URLs of images with "
                "--uri-column"
            )
        if not holds_images(table[uri_column].type):  # older writers of Parquet store text as plain binary
            require_texts(file, uri_column, table[uri_column].type)
        uris = absolute_uris(file, as_text(table[uri_column]).cast(TEXT))
        numbers = pa.array([f"{file.name}#row={i}" for i in range(table.num_rows)], TEXT)
        facts = {"image_id": pc.coalesce(self._ids(table), uris, numbers), "uri": uris}
        return self._listing(table, facts, leave=uri_column, written=written)

    def _list_cells(self, table: pa.Table, column: str, rows: int, paths: Column | None) -> pa.Table:
        """Rows of a Parquet file that contains the images; each `uri` names a cell. A row without one that has the path
        of a picture in the source names it, like the row of a list.
        """
        numbers: Column = pa.array([f"{self.file.name}#{i}" for i in range(rows)], TEXT)
        uris: Column = pa.array([cell_uri(self.file.uri, i, column) for i in range(rows)], TEXT)
        modified: Column = pa.array([self.file.modified] * rows, LISTING.field("modified").type)
        if paths is not None:
            paths = absolute_uris(self.file, paths)
            named = pc.is_in(pa.array(range(rows), pa.int64()), value_set=self.pictures.named_by(paths)["row"])
            numbers, uris = pc.if_else(named, paths, numbers), pc.if_else(named, paths, uris)
            modified = pc.if_else(named, pa.scalar(None, modified.type), modified)
        cells: dict[str, Column | list[Any]] = {
            "image_id": pc.coalesce(self._ids(table), numbers) if table.column_names else numbers,
            "uri": uris,
            "modified": modified,
        }
        return self._listing(table, cells, leave=column)

    def _listing(
        self, table: pa.Table, facts: Mapping[str, Column | list[Any]], *, leave: str, written: bytes | None = None
    ) -> pa.Table:
        """The listing of a table with these `facts`; its other columns are metadata, without `leave` and the ids."""
        names = [name for name in table.column_names if name not in (leave, self.columns.ids)]
        if index := unnamed_index(names):
            self.notes[left_out_note(UNNAMED_INDEX, index)] = [self.file.name]
            names = [name for name in names if name not in index]
        listing = listing_table(facts, {name: table[name] for name in names})
        self.notes.update((note, []) for note in renaming_notes(names))
        fields = list(listing.schema)
        for number, name in enumerate(names, start=len(LISTING)):
            marks: dict[bytes | str, bytes | str] = {NAME: name}
            if written and fields[number].type == TEXT:
                marks[WRITTEN] = written
            fields[number] = fields[number].with_metadata(marks)
        return pa.table(listing.columns, schema=pa.schema(fields))

    def _ids(self, table: pa.Table) -> Column:
        """The column of ids as text; null where it is missing or empty."""
        if self.columns.ids in table.column_names:
            return _empty_as_null(as_text(table[self.columns.ids]).cast(TEXT))
        if self.columns.id:
            raise SourceError(
                f"{self.file.uri} has no column `{self.columns.id}`, which --id-column names; its columns are "
                f"{', '.join(table.column_names) or 'none'}"
            )
        return pa.nulls(table.num_rows, TEXT)

    def _read_file(self, read: Callable[[Any], Any]) -> Any:
        try:
            with self.file.open() as source:
                return read(source)
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise SourceError(f"cannot read {self.file.uri} as {self.file.kind}: {error}") from error


def check_names(file: SourceFile, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SourceError(f"{file.uri} has more than one column named {', '.join(repeated)}: rename them")


def require_texts(file: SourceFile, name: str, type_: pa.DataType) -> None:
    kind = type_.value_type if pa.types.is_dictionary(type_) else type_
    if kind not in (pa.string(), pa.large_string(), pa.string_view(), pa.null()):
        raise SourceError(f"{file.uri}: expected paths or URLs in column `{name}`, got {type_}")


def _empty_as_null(texts: Column) -> Column:
    found: Column = pc.if_else(pc.equal(texts, pa.scalar("")), pa.scalar(None, TEXT), texts)
    return found


def absolute_uris(file: SourceFile, uris: Column) -> Column:
    """Absolute addresses. Paths in a list are relative to the list's own folder; empty ones become null."""
    uris = _empty_as_null(pc.utf8_trim_whitespace(uris))
    folder = pa.scalar(file.uri.rpartition("/")[0], TEXT)
    below = pc.binary_join_element_wise(folder, uris, pa.scalar("/", TEXT))  # type: ignore[call-overload]  # takes both
    absolute = pc.or_(pc.match_substring(uris, "://"), pc.starts_with(uris, "/"))
    found: Column = pc.if_else(absolute, uris, below)
    return found


@dataclass(frozen=True, kw_only=True)
class ListReader:
    """Reads tables, in any thread. `containers` are the paths of the source's tars, without extension, and of its
    folders with pictures.
    """

    columns: ListColumns
    exclusions: Exclusions
    pictures: Pictures
    containers: frozenset[str]

    def read(self, table: SourceFile) -> Listed:
        """The rows of a table that are images. Beside pictures or tars, a table need not be a list of images."""
        kind = table.kind
        try:
            listed = self._list(table)
        except NotAListError:
            if self.columns.uri or not (self.pictures.listing.num_rows or self.containers):
                raise
            return _left_out(f".{kind} without addresses or pictures")
        # As img2dataset writes them: the web addresses from which the pictures of a tar or folder were downloaded.
        of_web = pc.all(pc.match_substring_regex(listed.images["uri"], WEB)).as_py()
        if of_web and str(PurePosixPath(table.name).with_suffix("")) in self.containers:
            return _left_out(f".{kind} with the origins of pictures")
        return self._without_excluded(table, listed) if self.exclusions.has_patterns else listed

    def _list(self, table: SourceFile) -> Listed:
        """A file beside the list wins over an address, as the bytes do in Parquet."""
        if self.pictures.listing.num_rows and not self.columns.uri:
            with suppress(NotAListError):
                by_name = TableReader(table, replace(self.columns, uri=FILE_NAME), self.pictures).read()
                if self.pictures.named_by(by_name.images["uri"]).num_rows:
                    return by_name
        return TableReader(table, self.columns, self.pictures).read()

    def _without_excluded(self, table: SourceFile, listed: Listed) -> Listed:
        root = f"{place(table.uri.removesuffix(table.name))}/"
        addresses = ["" if uri is None else place(uri).removeprefix(root) for uri in listed.images["uri"].to_pylist()]
        kept = [not self.exclusions.excludes(address.rpartition("://")[2]) for address in addresses]
        images, excluded = listed.images.filter(pa.array(kept, pa.bool_())), Counter({EXCLUDED: kept.count(False)})
        return replace(listed, images=images, left_out=+excluded)


def _left_out(kind: str) -> Listed:
    return Listed(images=LISTING.empty_table(), left_out=Counter([kind]))
