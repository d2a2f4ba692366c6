"""Joins what lies beside the pictures of a folder to them: captions in .txt files, and lists that name the pictures."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedder.errors import FetchError
from embedder.fetch import Fetcher
from embedder.fetch.policy import FetchPolicy
from embedder.fetch.uris import FRAME_MARK, FrameAt, local_path, scheme_of, split_fragment
from index.collection.row_files import map_in_threads
from index.collection.rows import TEXT, conform
from index.storage.picture_reader import PictureReader
from jobs.sources.list_videos import shown_time
from jobs.sources.listing import LISTING, Column, common_schema, escaped, with_columns
from jobs.sources.sorted_files import ManyFiles
from jobs.sources.stored_listing import Listing
from jobs.sources.text_encoding import captions

MAX_SIDECAR_BYTES = 1_000_000
_CAPTIONS = 1 << 16  # in memory


def with_captions(
    images: ManyFiles, texts: ManyFiles, notes: dict[str, list[str]], left_out: Counter[str]
) -> Iterator[pa.Table]:
    """Listings of the images, with a column `txt` of the texts in `a.txt` or `a.jpg.txt`, if there are any. Texts
    without an image are `left_out`. `notes` gets the names of texts by what to say about them.
    """
    if not len(texts):
        return images.tables()
    pictures, captions_ = Listing.of(images.tables()), Listing.of(texts.tables())
    catalog = pictures.catalog
    columns = "stem, min(image_id) AS text, arg_min(uri, image_id) AS text_uri"
    catalog.group(
        "stems", columns, f"SELECT {_STEM} AS stem, image_id, uri FROM {captions_.view}", "stem", rows=len(texts)
    )
    catalog.create(_CAPTIONED.format(pictures=pictures.view))
    catalog.group("used", "text", "SELECT text FROM captioned WHERE text IS NOT NULL", "text")
    [used] = catalog.table("SELECT count(*) AS texts FROM used").to_pylist()
    left_out += Counter({".txt": len(texts) - used["texts"]})
    return _captioned(pictures, notes, left_out) if used["texts"] else pictures.tables()


_STEM: Final = r"regexp_replace(image_id, '\.[^./]*$', '')"
_CAPTIONED: Final = f"""
CREATE VIEW captioned AS
SELECT image.*, coalesce(whole.text, stem.text) AS text, coalesce(whole.text_uri, stem.text_uri) AS text_uri
FROM {{pictures}} AS image
LEFT JOIN stems AS whole ON whole.stem = image_id
LEFT JOIN stems AS stem ON stem.stem = {_STEM}
"""


def _captioned(pictures: Listing, notes: dict[str, list[str]], left_out: Counter[str]) -> Iterator[pa.Table]:
    schema = pictures.schema
    sql = f"SELECT {pictures.catalog.columns(schema.names)}, text, text_uri FROM captioned ORDER BY seq"
    with pictures.catalog.query(sql, _CAPTIONS) as batches:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            used = table.group_by(["text", "text_uri"]).aggregate([])
            used = used.filter(used["text"].is_valid())
            contents = _read(used, notes)
            left_out[".txt that cannot be read, or of more than 1 MB"] += contents.count(None)
            column = pa.array(contents, TEXT).take(pc.index_in(table["text"], value_set=used["text"]))
            images = conform(table.select(range(len(schema))).rename_columns(schema.names), schema)
            yield with_columns(images, {"txt": column})


def _read(texts: pa.Table, notes: dict[str, list[str]]) -> list[str | None]:
    fetcher = Fetcher(FetchPolicy(max_bytes=MAX_SIDECAR_BYTES), buckets=PictureReader())

    def read(uri: str) -> bytes | None:
        try:
            return fetcher.fetch(uri)
        except FetchError:
            return None

    names, uris = (cast(list[str], texts[name].to_pylist()) for name in ("text", "text_uri"))
    return captions(map_in_threads(read, uris), names, notes)


class Pictures:
    """The picture files and frames of a source, as lists name them. `folder` is that of a local source: lists may name
    it without the links in its path.
    """

    def __init__(self, listing: Listing, folder: str | None) -> None:
        self.listing = listing
        self._folder = folder and f"{place(folder)}/"
        self._without_links = folder and f"{place(os.path.realpath(folder))}/"
        if listing.num_rows:
            self._create_places()

    def named_by(self, uris: Column) -> pa.Table:
        """The rows, by number, that have the address of a picture, each with the picture's `seq`."""
        named = pa.table({"row": np.arange(len(uris)), "place": self._places(uris)})
        sql = "SELECT row, min(places.seq) AS seq FROM named JOIN places USING (place) GROUP BY row ORDER BY row"
        return self.listing.catalog.table(sql, named=named)

    def _places(self, uris: Column) -> Column:
        """`place` of each address, below the source's folder as it was given."""
        found = [None if uri is None else place(uri) for uri in uris.to_pylist()]
        if self._folder != self._without_links:
            given, real = str(self._folder), str(self._without_links)
            found = [each and (given + each[len(real) :] if each.startswith(real) else each) for each in found]
        return pa.array(found, TEXT)

    def _create_places(self) -> None:
        self.listing.catalog.create("CREATE TABLE places (seq BIGINT, place VARCHAR)")
        with self.listing.catalog.query(f"SELECT seq, uri FROM {self.listing.view}") as batches:
            for batch in batches:
                found = pa.table({"seq": batch["seq"], "place": self._places(batch["uri"])})
                self.listing.catalog.create("INSERT INTO places FROM found", found=found)

    def others(self, uris: Iterable[Column]) -> Iterator[pa.Table]:
        """Listings of the pictures that none of these addresses in lists names."""
        if not self.listing.num_rows:
            return iter(())
        catalog = self.listing.catalog
        catalog.create("CREATE TABLE named (seq BIGINT)")
        for each in uris:
            found = self.named_by(each)
            catalog.create("INSERT INTO named SELECT DISTINCT seq FROM found", found=found)
        return self.listing.tables(where=f"seq NOT IN (FROM {catalog.name}.named)")

    def join(self, rows: pa.Table) -> pa.Table:
        """The rows of a list, with the facts of the pictures that they name.

        A row `without_id` gets that of its picture, and the columns of both; the values of the list take precedence.
        """
        if not (self.listing.num_rows and rows.num_rows):
            return rows
        found = self.named_by(rows["uri"])
        named = found.select(["seq"]).group_by("seq").aggregate([]).sort_by("seq")
        seqs = found["seq"].take(pc.index_in(pa.array(np.arange(len(rows))), value_set=found["row"]))
        at = pc.index_in(seqs, value_set=named["seq"])
        facts = self.listing.read(where="seq IN (FROM named)", named=named).take(at)
        joined: dict[str, Column] = {
            name: pc.coalesce(rows[name], facts[name]) for name in ("size", "modified", "etag")
        }
        names = pc.if_else(without_id(rows), facts["image_id"], pa.scalar(None, TEXT))
        joined["image_id"] = pc.coalesce(names, rows["image_id"])
        joined["uri"] = pc.coalesce(facts["uri"], rows["uri"])
        for name in self.listing.schema.names[len(LISTING) :]:
            joined[name] = _coalesced(rows, facts, name) if name in rows.column_names else facts[name]
        return with_columns(rows, joined)


def _coalesced(rows: pa.Table, facts: pa.Table, name: str) -> Column:
    """A column that both have: the fact where the row has no value. Its type changes only if a fact is needed."""
    own: Any = rows[name]
    has_value = pc.is_valid(own)
    if own.type == TEXT:  # a CSV has no null, but empty text
        has_value = pc.not_equal(own, pa.scalar("", TEXT)).fill_null(False)
    needed = ~np.asarray(has_value) & np.asarray(pc.is_valid(facts[name]))
    if not needed.any():
        return rows[name]
    parts = [rows.select([name]), facts.select([name])]
    schema = common_schema(parts, parts)
    both: Any = pa.concat_tables([conform(part, schema) for part in parts])[name]
    # `take`, as Arrow can coalesce neither JSON nor text with lists.
    taken: Column = both.take(pa.array(np.arange(len(rows)) + len(rows) * needed))
    return taken


def without_id(rows: pa.Table) -> Column:
    """A mask of the rows of lists that have no id of their own, but their address."""
    mask: Column = pc.equal(rows["image_id"], rows["uri"]).fill_null(False)
    return mask


def place(uri: str) -> str:
    """An address in one spelling: a path without `.` and `..`, of a local file without file://, a frame's time without
    zeros that say nothing.
    """
    with suppress(FetchError):  # of a bad address, which becomes a reject
        if FRAME_MARK in uri:
            file, part = split_fragment(uri)
            if isinstance(part, FrameAt):
                return f"{place(file)}{FRAME_MARK}{shown_time(part.time)}"
        if scheme_of(uri) == "file":
            return escaped(os.path.normpath(local_path(uri)))
    scheme, mark, path = uri.partition("://")
    return f"{scheme}{mark}{os.path.normpath(path)}" if mark else os.path.normpath(uri)
