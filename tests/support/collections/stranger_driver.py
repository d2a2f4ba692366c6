"""Uses collections that were made to hurt, each in a process of its own: `python -m …stranger_driver`.

It reads a folder a line, after `build` or `read`, and answers each with a line of JSON: how the process ended, what
each use came to, and the maximum memory.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from index.analysis.duplicate_plan import read_plan
from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.lease import current_writer
from index.errors import CollectionError
from index.search import Searcher
from index.search.shard import version_schema
from index.versions.promotion import list_versions, promote, rollback
from index.versions.prune import prune
from index.versions.servable import open_last_good
from jobs.errors import JobError
from jobs.schedule.history import last_entries, read_output
from likeness.cli.tables.collection import collection_facts, facts_table
from tests.support.collections.hand_made import unit_vectors, written_rows
from tests.support.collections.rejects_and_checks import list_rejects

SECONDS = 60
_ADDRESS_SPACE = 8 << 30


def _search(searcher: Searcher, collection: Collection) -> None:
    version_schema(collection, searcher.manifest)
    for k in (1, 10, 290):
        searcher.search(unit_vectors(3, seed=9), k)
    searcher.search(unit_vectors(2, seed=8), 5, filter={"label": "label 1"}, distinct=0.9)
    searcher.search(unit_vectors(1, seed=7), 5, fields=list(searcher.filterable), kind="image")
    searcher.search(unit_vectors(1, seed=6), 5, filter={"label": {"$match": 'lab* "label 1"'}})
    searcher.answer(None, 20, words='label red "memory 007" n*', filter={})
    searcher.facets()
    searcher.percentile(0.5)
    for image_id in ("007", "003", "new-3"):
        searcher.row(image_id)


def _read_runs(collection: Collection) -> None:
    snapshot = collection.snapshot()
    for _ in snapshot.live.embedded():
        pass
    snapshot.live.read()
    for run in snapshot.unfinished:
        written_rows(collection, run, collection.written_files(run)).read()


def _history(collection: Collection) -> None:
    current_writer(collection.storage)
    for entry in last_entries(collection, 10):
        read_output(collection.storage, entry.id)


USES: dict[str, Callable[[Collection], object]] = {
    "info": lambda collection: facts_table(collection_facts(collection)),
    "rejects": list_rejects,
    "versions": list_versions,
    "history": _history,
    "duplicates": lambda collection: read_plan(collection, 0, 10),
    "search": lambda collection: _search(Searcher.open(collection, "000005"), collection),
    "search the last good": lambda collection: _search(open_last_good(collection, Searcher.open), collection),
    "rows": _read_runs,
    "build": build_index,
    "build anew": lambda collection: build_index(collection, rebuild=True),
    "promote": lambda collection: promote(collection, "000004"),
    "rollback": rollback,
    "prune": lambda collection: prune(collection, 1),
}


def _use(mode: str, folder: str) -> dict[str, Any]:
    """What each use came to: null, or the message with which it was refused. Other exceptions are traces."""
    refused: dict[str, str | None] = {}
    traces: dict[str, str] = {}
    for name, use in USES.items():
        if name.startswith("build") and mode != "build":  # takes far longer than the rest
            continue
        refused[name] = None
        try:
            use(Collection.open(folder))
        except (CollectionError, JobError, OSError) as error:  # those that commands turn into a line
            refused[name] = str(error)
        except BaseException as error:
            traces[name] = f"{type(error).__name__}: {str(error)[:300]}"
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {"refused": refused, "traces": traces, "peak": int(peak.split()[1]) << 10}


def main() -> None:
    for name in ("duckdb", "pandas"):  # once, not in each process
        import_module(name)
    for line in sys.stdin:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(SECONDS)
            resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.write(writer, json.dumps(_use(*line.rstrip("\n").split(" ", 1))).encode()[:60_000])
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            answer = pipe.read()
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": status, **json.loads(answer or b"{}")}), flush=True)


if __name__ == "__main__":
    main()
