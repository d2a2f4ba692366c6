"""What a stranger may put into a collection to hurt those who open it. `seal` makes the digests right afterwards."""

import os
from functools import partial
from typing import Final

import faiss
import pyarrow as pa

from tests.support.collections.hurt_files import (
    LARGE,
    Hurt,
    added,
    ann,
    arrow,
    column,
    content,
    field,
    folder,
    link,
    made,
    occurrences,
    on_disk,
    pipe,
    repeated,
    sparse,
    tombstone,
    vectors_that_are_not_numbers,
    with_links,
    zoned,
)

_MANIFEST: Final = "index/000005/manifest.json"
_SEGMENT: Final = "segments.0"
_DEEP: Final = b"[" * 100_000
_FAR: Final = 10**12
_ROWS: Final = "runs/*/rows/*.parquet"

_RECORDS: dict[str, Hurt] = {
    f"{what} in {file}": content(file, data)
    for file in (
        "CURRENT",
        _MANIFEST,
        "runs/*/manifest.json",
        "runs/*/started.json",
        ".lease",
        "history/*.json",
        "duplicates.jsonl",
    )
    for what, data in {
        "JSON nested 100,000 deep": _DEEP,
        "5,000,000 lists": b"[" + b"[]," * 5_000_000 + b"[]]",
        "a number of 5,000 digits": b"9" * 5_000,
        "bytes that are not UTF-8": b"\xff\xfe\x00",
        "half a character": b'{"version": "\\ud800"}',
    }.items()
}

_FIELDS: dict[str, Hurt] = {
    f"{name} {str(value)[:24]} in {file}": field(file, name, value)
    for file, values in dict[str, list[tuple[str, object]]](
        {
            "CURRENT": [("version", each) for each in ("../../outside", "/etc", "000009", "9" * 300, "000005\n", 5)],
            _MANIFEST: [
                *((f"{_SEGMENT}.parameters.rescore", each) for each in (1e7, -1, 0, float("nan"), float("inf"))),
                *((f"{_SEGMENT}.parameters.nprobe", each) for each in (1e30, 0, -5)),
                (f"{_SEGMENT}.parameters.k_factor", 1e9),
                (f"{_SEGMENT}.parameters.efSearch", 1e300),
                (f"{_SEGMENT}.parameters.breadth", 1e308),
                (f"{_SEGMENT}.parameters.unheard", 1),
                *((f"{_SEGMENT}.name", each) for each in ("../../outside", "000001-00/../000001-00", "")),
                *((f"{_SEGMENT}.ntotal", each) for each in (0, -1, 10**18, 10**40)),
                (f"{_SEGMENT}.live", 10**9),
                (f"{_SEGMENT}.files", {"../../../outside/secret": {"size": 6, "sha256": "0" * 64}}),
                *(("model.dim", each) for each in (0, -1, 10**9, 16)),
                *(("model.tiles", each) for each in ("9" * 4000 + "x9", "9x9", "2x2", "0x0")),
                *((name, "../../outside") for name in ("version", "base", "annotates")),
                ("version", "000004"),
                ("runs", ["../../outside"]),
                ("runs", []),
                ("segments", []),
                ("ntotal", -1),
                ("recall", {}),
                ("kinds.image.width", 1e30),
                ("kinds.image.width", float("nan")),
                ("kinds.smell", {"queries": 1, "recall": 1.0, "width": 1.0}),
                ("scores.levels", [0.0]),
                ("created_at", "2026-01-01T00:00:00"),
                ("created_at", "9999-12-31T23:59:59-23:00"),
                ("settings.latency_ms", 1e308),
                ("settings.segment_rows", 0),
                ("settings.factory", "IVF999999999,Flat"),
                ("settings.factory", "HNSW99999999"),
                ("files", {}),
                ("format", 99),
            ],
            "runs/*/manifest.json": [
                ("run_id", "../../outside"),
                ("run_id", "20200101T000000Z-0000"),
                *(("files.path", each) for each in ("../outside/secret", "/etc/passwd", "CURRENT")),
                *(("facts.0.rows", each) for each in (10**15, -1, 10**30)),
                ("files.size", 10**15),
                ("model.dim", 10**6),
                ("model.dim", 0),
                ("finished_at", "0001-01-01T00:00:00+23:00"),
                ("keep", "[" * 100_000),
                ("counts", {"a": 10**400}),
            ],
            "runs/*/started.json": [("run_id", "../../outside"), ("started_at", "yesterday")],
            ".lease": [("pid", -1), ("pid", 10**30), ("expires_at", "2030-01-01T00:00:00"), ("process", "/" * 9)],
            "history/*.json": [("id", "../../outside/secret"), ("pid", -1), ("started_at", "2026-01-01T00:00:00")],
        }
    ).items()
    for name, value in values
}

_FILES: dict[str, Hurt] = {
    f"{what} for {file}": make(file)
    for file in (
        "CURRENT",
        _MANIFEST,
        f"{LARGE}/rows.arrow",
        f"{LARGE}/ids.arrow",
        f"{LARGE}/words.arrow",
        f"{LARGE}/vectors.faiss",
        f"{LARGE}/ann.faiss",
        "index/000005/queries.arrow",
        "index/000005/tombstones.arrow",
        "index/000005/columns-000001-00.arrow",
        "index/000005/words-000001-00.arrow",
        "runs/*/manifest.json",
        "runs/*/rows/*.parquet",
        "history/*.json",
        "duplicates.jsonl",
        ".lease",
    )
    for what, make in {"a pipe": pipe, "a link": link, "a folder": folder}.items()
} | {
    "a link for the lock of the lease": link("..lease.lock"),
    "a dangling link for the lock of the lease": link("..lease.lock", "../outside/new"),
    "a link for the lock of CURRENT": link(".CURRENT.lock"),
    "a pipe for the lock of the lease": pipe("..lease.lock"),
    "a link for index": link("index", "../outside"),
    "a link for runs": link("runs", "../outside"),
    "a link for a segment": link(LARGE, "../outside"),
    "a link for a version": link("index/000004", "../outside"),
    "a link for the annotations": link("annotations", "../outside"),
    "a link for an annotation": link("annotations/colour", "../outside"),
    "a link for the history": link("history", "../outside"),
    "a link in a segment": link(f"{LARGE}/more", "../outside"),
    "a link to the collection in itself": link("index/segments/000001-07", "."),
    "a link to everything": link("index/000002/all", "../../../../../../../../.."),
    "a CURRENT of a terabyte": sparse("CURRENT"),
    "a manifest of a terabyte": sparse(_MANIFEST),
    "a lease of a terabyte": sparse(".lease"),
    "a mark of a terabyte": sparse("index/000003/rolled_back"),
}

_ARROW: dict[str, Hurt] = {
    "a tombstone at 10¹²": tombstone(_FAR),
    "a tombstone at -1": tombstone(-1),
    "a tombstone nowhere": tombstone(None),
    "tombstones of another kind": arrow(
        "index/000005/tombstones.arrow", lambda table: table.rename_columns(["a", "b"])
    ),
    "rows without ids": arrow(f"{LARGE}/rows.arrow", lambda table: table.drop_columns(["image_id"])),
    "ids that are null": arrow(
        f"{LARGE}/rows.arrow", column("image_id", lambda table: pa.nulls(table.num_rows, pa.string()))
    ),
    "ids that are numbers": arrow(f"{LARGE}/rows.arrow", column("image_id", repeated(7))),
    "addresses that are numbers": arrow(f"{LARGE}/rows.arrow", column("uri", repeated(7))),
    "a column twice": arrow(f"{LARGE}/rows.arrow", added("label", repeated("a"))),
    "an embedding among the rows": arrow(f"{LARGE}/rows.arrow", added("embedding", repeated("a"))),
    "fewer rows than vectors": arrow(f"{LARGE}/rows.arrow", lambda table: table.slice(9)),
    "no rows": arrow(f"{LARGE}/rows.arrow", lambda table: table.slice(0, 0)),
    "positions of ids at 10⁹": arrow(
        f"{LARGE}/ids.arrow",
        column("position", lambda table: pa.array([10**9] * table.num_rows, pa.uint32())),
    ),
    "positions of ids of another kind": arrow(f"{LARGE}/ids.arrow", column("position", repeated(-1))),
    "values of a gigabyte in a small file": arrow(
        f"{LARGE}/rows.arrow", added("note", repeated("a" * (1 << 20))), compression="zstd"
    ),
    "a time zone that is none": zoned("Nowhere/Land"),
    "a time zone that is a path": zoned("../../../../etc/passwd"),
    "columns that replace addresses": arrow("index/000005/columns-000001-00.arrow", added("uri", repeated(7))),
    "columns of fewer rows": arrow("index/000005/columns-000001-00.arrow", lambda table: table.slice(9)),
    "words of no column": arrow(f"{LARGE}/words.arrow", lambda table: table.replace_schema_metadata({"columns": "[]"})),
    "words of columns nested deeply": arrow(
        f"{LARGE}/words.arrow", lambda table: table.replace_schema_metadata({"columns": "[" * 100_000})
    ),
    "words of other rows": arrow(f"{LARGE}/words.arrow", lambda table: pa.concat_tables([table] * 3)),
    "words at rows that are not there": arrow(
        f"{LARGE}/words.arrow", column("occurrences", occurrences([{"row": 60_000, "place": 1}]))
    ),
    "words at rows in disorder": arrow(
        f"{LARGE}/words.arrow", column("occurrences", occurrences([{"row": row, "place": 1} for row in (9, 2, 9)]))
    ),
    "words without rows": arrow(f"{LARGE}/words.arrow", column("occurrences", occurrences(None))),
    "queries of other dimensions": arrow(
        "index/000005/queries.arrow",
        column("vector", lambda table: pa.array([[0.5, 0.5]] * table.num_rows, pa.list_(pa.float32(), 2))),
    ),
    "queries of an unknown kind": arrow("index/000005/queries.arrow", column("kind", repeated("smell"))),
    "no queries": arrow("index/000005/queries.arrow", lambda table: table.slice(0, 0)),
    "queries without their number": arrow(
        "index/000005/queries.arrow", lambda table: table.replace_schema_metadata({"sampled_from": "9" * 5000})
    ),
    "row files whose ids are null": arrow(
        _ROWS, column("image_id", lambda table: pa.nulls(table.num_rows, pa.string()))
    ),
    "row files with a column twice": arrow(_ROWS, added("uri", repeated("a"))),
    "row files with other types": arrow(_ROWS, column("size", repeated("large"))),
    "facts whose ids are numbers": arrow("runs/*/facts/*", column("image_id", repeated(7))),
    "facts without addresses": arrow("runs/*/facts/*", lambda table: table.drop_columns("row_file")),
    "a list of files elsewhere": arrow("runs/*/files.*", column("path", repeated("../../secret"))),
    "a list of files without digests": arrow("runs/*/files.*", lambda table: table.drop_columns("sha256")),
    "a list of files that is empty": arrow("runs/*/files.*", lambda table: table.slice(0, 0)),
}

_FAISS: dict[str, Hurt] = {
    "vectors that are not numbers": vectors_that_are_not_numbers,
    "vectors that end early": lambda root: os.truncate(root / LARGE / "vectors.faiss", 1000),
    "an index that ends early": lambda root: os.truncate(root / LARGE / "ann.faiss", 1000),
    "an index of rows that are not there": ann(partial(made, "IVF4,Flat", first=_FAR)),
    "an index of negative rows": ann(partial(made, "IVF4,Flat", first=-300)),
    "an index of a few rows": ann(lambda ntotal, dim: made("IVF4,Flat", ntotal - 9, dim)),
    "an index of other dimensions": ann(lambda ntotal, dim: made("IVF4,Flat", ntotal, dim * 2)),
    "an index of another metric": ann(lambda ntotal, dim: made("IVF4,Flat", ntotal, dim, faiss.METRIC_L2)),
    "an index of a kind that is not checked": ann(lambda ntotal, dim: made("NSG8,Flat", ntotal, dim)),
    "a graph with links to nowhere": ann(partial(with_links, 2**31 - 1)),
    "a graph with negative links": ann(partial(with_links, -9)),
    "lists in a file outside": ann(partial(on_disk, "/tmp/likeness-test-lists")),  # only its name counts
    "an index that is a text": content(f"{LARGE}/ann.faiss", b"not an index"),
}

HURTS: Final[dict[str, Hurt]] = _RECORDS | _FIELDS | _FILES | _ARROW | _FAISS
