"""A collection with each kind of file that there is, and its records rewritten with right digests."""

import hashlib
import json
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from index.analysis.duplicate_plan import write_plan
from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.annotations import annotation_log
from index.collection.layout import LEASE
from index.collection.lease import LeaseRecord
from index.collection.records.index_settings import IndexSettings
from index.search import Searcher
from index.versions.promotion import rollback
from jobs.embedding.report import Report
from jobs.schedule.history import HistoryEntry, save, save_output
from tests.support.collections.duplicate_plans import duplicate_plan_of
from tests.support.collections.hand_made import MODEL, add_run, add_version, rows, unit_vectors

IDS = [f"{number:03d}" for number in range(300)]

# So short that no more than 31 rows are scanned exactly: the large segment is approximate, the small ones are flat.
SETTINGS = IndexSettings(target_recall=0.8, latency_ms=1e-4)


def make_versions(folder: Path) -> Collection:
    """Four versions, each of one more run, the third rolled back; an unfinished run, and a job's history."""
    collection = Collection.create_or_open(str(folder))
    vectors, labels = unit_vectors(300), {"label": [f"label {number % 3}" for number in range(150)]}
    add_run(
        collection,
        rows(IDS[:150], vectors[:150], metadata=labels),
        rows(IDS[150:], vectors[150:], rejected={"bad": "corrupt"}),
    )
    build_index(collection, SETTINGS)
    add_version(collection, rows(["new-1", "007"], unit_vectors(2, seed=1)), deletes=["003", "200"])
    add_version(collection, rows(["new-2"], unit_vectors(1, seed=2)))
    rollback(collection)
    add_run(collection, rows(["new-3", "008"], unit_vectors(2, seed=3)), deletes=["new-2"])
    assert build_index(collection).version == "000004"
    stopped = collection.start_run("memory:", MODEL)
    collection.write_rows(stopped.run_id, "0001-block", rows(["late"], unit_vectors(1, seed=4)))
    outcome = HistoryEntry.begin("memory:", collection.location)
    save(collection.storage, outcome.end("succeeded", None, Report(index_after="000004")))
    save_output(collection.storage, outcome.id, "what it printed\n")
    then = datetime.now(UTC) - timedelta(hours=1)
    lease = LeaseRecord(token="t", command="embed", user="u", host="h", pid=1, process="", since=then, expires_at=then)
    collection.storage.write_atomic(LEASE, lease.to_bytes())
    return collection


def make_every_file(folder: Path) -> Collection:
    """`make_versions`, with an annotation, a version that has its column, and a plan of duplicates."""
    collection = make_versions(folder)
    log = annotation_log(collection, "colour")
    log.storage.create_folder("runs")
    predictor = MODEL.model_copy(update={"id": "colour", "fingerprint": "c" * 64})
    add_run(log, rows(IDS[:9], unit_vectors(9), metadata={"colour": ["red"] * 9}), model=predictor)
    build_index(collection)
    write_plan(collection, duplicate_plan_of(Searcher.open(collection), ("010", "011", "cropped")))
    return collection


def edit_record(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a record's JSON, and make its checksum right."""
    content = json.loads(path.read_bytes())
    content.pop("checksum")
    change(content)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(canonical.encode()).hexdigest()
    path.unlink()
    path.write_text(json.dumps({**content, "checksum": checksum}))


def set_field(path: Path, field: str, value: object) -> None:
    """Set a field of a record, such as `segments.0.name`."""

    def change(content: Any) -> None:
        *parents, last = field.split(".")
        for name in parents:
            content = content[int(name)] if isinstance(content, list) else content[name]
        content[int(last) if isinstance(content, list) else last] = value

    edit_record(path, change)


def seal(root: Path) -> None:
    """Make the sizes and digests in all manifests those of the files that are there."""

    def update(record: dict[str, Any], file: Path) -> None:
        if file.is_file() and not file.is_symlink():
            data = file.read_bytes()
            record |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def run(content: dict[str, Any], log: Path) -> None:
        path = log / content["files"]["path"]
        with suppress(OSError, pa.ArrowException):
            files = pq.read_table(path).to_pylist()
            for record in files:
                update(record, log / record["path"])
            pq.write_table(pa.Table.from_pylist(files), path)
        for record in [content["files"], *content["facts"]]:
            update(record, log / record["path"])

    def version(content: dict[str, Any], folder: Path) -> None:
        for name, record in content["files"].items():
            update(record, folder / name)
        for segment in content["segments"]:
            for name, record in segment["files"].items():
                update(record, root / "index/segments" / segment["name"] / name)
            if segment["columns"]:
                update(segment["columns"], folder / f"columns-{segment['name']}.arrow")
            if segment["words"]:
                update(segment["words"], folder / f"words-{segment['name']}.arrow")

    manifests = {path: partial(run, log=path.parents[2]) for path in root.glob("**/runs/*/manifest.json")}
    manifests |= {path: partial(version, folder=path.parent) for path in root.glob("index/*/manifest.json")}
    for manifest, change in manifests.items():
        if manifest.is_file() and not manifest.is_symlink() and manifest.stat().st_size < 1 << 20:
            with suppress(ValueError, TypeError, LookupError, RecursionError):  # a test broke it
                edit_record(manifest, change)


def edited(data: bytes, drawn: random.Random) -> bytes:
    """A few bytes replaced, as in random edits by someone who wants a reader to crash."""
    changed = bytearray(data)
    for _ in range(drawn.choice([1, 1, 2, 4, 16])):
        at = drawn.randrange(len(changed))
        size = drawn.choice([1, 1, 4, 8])
        value = drawn.choice([0, 0xFF, 0x7F, 0x80, drawn.randrange(256)])
        changed[at : at + size] = bytes([value]) * min(size, len(changed) - at)
    return bytes(changed)
