"""Checks approximate indexes that anyone may have written, in a process of its own: faiss trusts the sizes and numbers
in a file, and aborts or reads beyond its arrays where they are wrong.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import faiss
import numpy as np

from index.errors import CollectionError
from index.segments.kinds.kind import IndexKind, faiss_reason
from index.segments.kinds.registry import map_index

_BOOTSTRAP: Final = (
    "import json, sys; sys.path[:], jobs = json.loads(sys.argv[1]); from index.segments.ann_check import run; run(jobs)"
)
_MEMORY: Final = 1 << 30  # bytes beside three times the file, for what faiss copies and unpacks
_BYTES_PER_S: Final = 20e6
_PATIENCE_S: Final = 60.0
_QUERIES, _K = 16, 20

Job = tuple[str, int, int]
"""The path of an index, the number of its vectors, and their dimensions."""


def first_refused(jobs: Sequence[Job]) -> tuple[str, str] | None:
    """Path and problem of the first index that is not as the job says, or cannot be searched safely. CollectionError if
    the process that checks them does not start.
    """
    size = sum(Path(path).stat().st_size for path, _, _ in jobs)
    # Not with multiprocessing, which would run the caller's main module again in the child.
    command = [sys.executable, "-P", "-c", _BOOTSTRAP, json.dumps([sys.path, jobs])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            output, errors = process.communicate(timeout=_PATIENCE_S + size / _BYTES_PER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
        finally:
            process.kill()
    started, *answers = [json.loads(line) for line in output.splitlines()] or [None]
    if not started:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2] or _ending(process.returncode)
        raise CollectionError(f"approximate indexes cannot be checked, because Python does not start: {reason}")
    for (path, _, _), problem in zip(jobs, answers, strict=False):
        if problem:
            return path, problem
    if len(answers) < len(jobs):
        return jobs[len(answers)][0], f"the process that opened it ended with {_ending(process.returncode)}"
    return None


def _ending(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def run(jobs: Sequence[Job]) -> None:
    """The child: prints that it has started, then the problem of each index or null, as lines of JSON."""
    size = max(Path(path).stat().st_size for path, _, _ in jobs)
    if sys.platform == "linux":  # macOS does not enforce the limit
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 3 * size + _MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(json.dumps("started"), flush=True)
    for path, ntotal, dim in jobs:
        print(json.dumps(_problem_of(path, ntotal, dim)), flush=True)


def _problem_of(path: str, ntotal: int, dim: int) -> str | None:
    try:
        kind = map_index(Path(path))
        kind.require_sound(ntotal, dim)
        _search_everywhere(kind, ntotal, dim)
    except (RuntimeError, ValueError, TypeError, MemoryError, OverflowError) as error:
        return faiss_reason(error)[:300]
    return None


def _search_everywhere(kind: IndexKind, ntotal: int, dim: int) -> None:
    """Searches as wide as can be, with and without a selection of rows, which read every code once."""
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((_QUERIES, dim)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    selector = faiss.IDSelectorBitmap(np.packbits(rng.random(ntotal) < 0.5, bitorder="little"))
    for chosen in (None, selector):
        scores, rows = kind.index.search(queries, min(_K, ntotal), params=kind.search_parameters(chosen, 1e6))
        if rows.min() < -1 or rows.max() >= ntotal or np.isnan(scores[rows >= 0]).any():
            raise ValueError("a search returns rows that it does not have, or scores that are no numbers")
