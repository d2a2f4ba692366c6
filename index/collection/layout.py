"""Paths of a collection's files; ARCHITECTURE.md says what is in each."""

from collections.abc import Set
from typing import Final

ANNOTATIONS: Final = "annotations"
"""Each annotation has a subfolder, with runs like the collection's own."""
CHECKS: Final = "checks"
"""What was found at web addresses, beside the runs, because a check that finds no change adds no row."""
CURRENT: Final = "CURRENT"
DUPLICATES: Final = "duplicates.jsonl"
HISTORY: Final = "history"
INDEX: Final = "index"
MERGED: Final = "merged"
"""Facts of many small runs in a few files, made from those of the runs."""
LEASE: Final = ".lease"
"""Hidden, because readers do not need it."""
RUNS: Final = "runs"
MEMBERS: Final = (ANNOTATIONS, CHECKS, CURRENT, DUPLICATES, HISTORY, INDEX, MERGED, RUNS)
"""What is visible in a collection's folder."""
SEGMENTS: Final = "index/segments"
"""Beside the versions, because several may share a segment."""

VERSION: Final = "[0-9]{6}"
"""The pattern of the name of a version."""

MANIFEST: Final = "manifest.json"
"""In the folder of a run or a version: written last, so its presence is the commit."""

# In the folder of a run
LEARNED: Final = "learned"
"""Prefix of the files beside an annotation's runs with what its predictors learned from the collection."""

DELIVERED: Final = "delivered.json"
"""Beside the runs of saved searches: what each of them has reported."""
QUERY_VECTORS: Final = "query-vectors.json"
"""There too: the vectors of their queries."""
RUN_STARTED: Final = "started.json"
ROW_FILES: Final = "rows"
FILE_LIST: Final = "files"
FACTS: Final = "facts"
"""Files with all columns of the rows but vectors, for the catalog; those of deleted ids have nothing else."""
TODO: Final = "todo-"
"""Prefix of a folder with the images that are left to embed, while a job embeds them on Ray."""

# In the folder of a version
STARTED: Final = "started"
SUPERSEDED: Final = "superseded"
ROLLED_BACK: Final = "rolled_back"
TOMBSTONES: Final = "tombstones.arrow"
QUERIES: Final = "queries.arrow"

COLUMNS: Final = "columns"
"""Prefix of the files with annotations, one for each segment."""
COLUMN_WORDS: Final = "words"
"""Prefix of the files with the words of annotations, one for each segment."""

# In the folder of a segment
VECTORS: Final = "vectors.faiss"
ROWS: Final = "rows.arrow"
IDS: Final = "ids.arrow"
"""The positions of the rows, in the order of their ids."""
WORDS: Final = "words.arrow"
"""The words of the rows' own columns."""
ANN: Final = "ann.faiss"
TILE_VECTORS: Final = "tiles.faiss"
TILE_ANN: Final = "tiles-ann.faiss"
ANN_OF: Final = {VECTORS: ANN, TILE_VECTORS: TILE_ANN}
"""The approximate index of each file of vectors."""


def next_number(taken: Set[int], last: int) -> int:
    """A number from 1 to `last` that is not taken: after the largest that has a free one after it, as anyone may give a
    folder any number.
    """
    return 1 + max((number for number in taken if number < last and number + 1 not in taken), default=0)


def run_path(run_id: str, *names: str) -> str:
    return "/".join((RUNS, run_id, *names))


def merged_path(number: int, *names: str) -> str:
    return "/".join((MERGED, f"{number:08}", *names))


def version_path(version: str, *names: str) -> str:
    return "/".join((INDEX, version, *names))


def columns_path(version: str, segment: str) -> str:
    return version_path(version, f"{COLUMNS}-{segment}.arrow")


def words_path(version: str, segment: str) -> str:
    return version_path(version, f"{COLUMN_WORDS}-{segment}.arrow")


def annotation_path(name: str) -> str:
    return f"{ANNOTATIONS}/{name}"


def learned_path(fingerprint: str) -> str:
    """Of a predictor, below the folder of its annotation."""
    return f"{LEARNED}-{fingerprint}.json"


def segment_path(segment: str, *names: str) -> str:
    return "/".join((SEGMENTS, segment, *names))
