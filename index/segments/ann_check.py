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
from typing import Any, Final

from index.errors import CollectionError

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
    import faiss  # noqa: F401  # before memory is limited

    size = max(Path(path).stat().st_size for path, _, _ in jobs)
    if sys.platform == "linux":  # macOS does not enforce the limit
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 3 * size + _MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(json.dumps("started"), flush=True)
    for path, ntotal, dim in jobs:
        print(json.dumps(_problem_of(path, ntotal, dim)), flush=True)


def _problem_of(path: str, ntotal: int, dim: int) -> str | None:
    from index.segments import ann

    try:
        index = ann.read_index(Path(path))
        require_sound(index, ntotal, dim)
        _search_everywhere(index, ntotal, dim)
    except (RuntimeError, ValueError, TypeError, MemoryError, OverflowError) as error:
        return ann.faiss_reason(error)[:300]
    return None


def require_sound(index: Any, ntotal: int, dim: int) -> None:
    """ValueError unless all parts of an index fit together: sizes, dimensions, and the rows that they name."""
    import faiss

    index = faiss.downcast_index(index)
    kind = type(index).__name__
    if (index.ntotal, index.d) != (ntotal, dim) or not index.is_trained:
        raise ValueError(f"{kind} has {index.ntotal} vectors of {index.d} dimensions: expected {ntotal} of {dim}")
    if isinstance(index, faiss.IndexRefine):
        require_sound(index.base_index, ntotal, dim)
        require_sound(index.refine_index, ntotal, dim)
    elif isinstance(index, faiss.IndexPreTransform):
        for number in range(index.chain.size()):
            step = index.chain.at(number)
            if step.d_in != dim or not step.is_trained:
                raise ValueError(f"a transformation takes {step.d_in} dimensions: expected {dim}")
            dim = step.d_out
        require_sound(index.index, ntotal, dim)
    elif isinstance(index, faiss.IndexIVF):
        _require_lists(index, ntotal)
    elif isinstance(index, faiss.IndexHNSW):
        require_sound(index.storage, ntotal, dim)
        _require_graph(index.hnsw, ntotal)
    elif isinstance(index, faiss.IndexFlatCodes):
        if index.codes.size() != ntotal * index.code_size:
            raise ValueError(f"{kind} has {index.codes.size()} bytes of codes for {ntotal} of {index.code_size}")
    elif not isinstance(index, faiss.IndexFastScan):
        raise ValueError(f"{kind} cannot be checked: expected lists (IVF), graphs (HNSW) or codes (SQ, PQ, Flat)")


def _require_lists(index: Any, ntotal: int) -> None:
    import faiss
    import numpy as np

    require_sound(index.quantizer, index.nlist, index.d)
    lists = faiss.downcast_InvertedLists(index.invlists)
    if not isinstance(lists, faiss.ArrayInvertedLists | faiss.BlockInvertedLists):
        raise ValueError(f"its lists are {type(lists).__name__}: expected lists in this file")  # others name a file
    if lists.nlist != index.nlist:
        raise ValueError(f"it has {lists.nlist} lists, expected {index.nlist}")
    seen = np.zeros(ntotal, bool)
    for number in range(index.nlist):
        if size := lists.list_size(number):
            ids = faiss.rev_swig_ptr(lists.get_ids(number), size)
            if ids.min() < 0 or ids.max() >= ntotal:
                raise ValueError(f"list {number} names a row that it does not have")
            seen[ids] = True
    if not seen.all():
        raise ValueError(f"its lists have {int(seen.sum())} of {ntotal} rows")


def _require_graph(graph: Any, ntotal: int) -> None:
    import faiss
    import numpy as np

    offsets, levels = faiss.vector_to_array(graph.offsets), faiss.vector_to_array(graph.levels)
    neighbours, sizes = graph.neighbors, faiss.vector_to_array(graph.cum_nneighbor_per_level)
    links = faiss.vector_to_array(neighbours)
    fits = (
        len(levels) == ntotal
        and len(offsets) == ntotal + 1
        and len(sizes) > 0
        and sizes[0] == 0
        and (np.diff(sizes) >= 0).all()
        and (ntotal == 0 or (levels.min() >= 1 and levels.max() < len(sizes)))
    )
    if not fits or not np.array_equal(np.diff(offsets), sizes[levels]) or offsets[-1] != len(links) or offsets[0] != 0:
        raise ValueError("the sizes of its graph do not fit together")
    if not (-1 <= graph.entry_point < ntotal and graph.max_level < len(sizes) - 1):
        raise ValueError("its graph begins at a row that it does not have")
    if graph.entry_point >= 0 and levels[graph.entry_point] <= graph.max_level:
        raise ValueError("its graph begins above the first row's levels")
    if len(links) and not (links.min() >= -1 and links.max() < ntotal):
        raise ValueError("its graph names a row that it does not have")
    _require_levels(links, offsets, levels, sizes)


def _require_levels(links: Any, offsets: Any, levels: Any, sizes: Any) -> None:
    """A link of a level leads to a row that has the level: the row's own links there are read next."""
    import numpy as np

    for level in range(1, len(sizes) - 1):
        above = np.flatnonzero(levels > level)
        spans = offsets[above].astype(np.int64)[:, np.newaxis] + np.arange(sizes[level], sizes[level + 1])
        targets = links[spans.ravel()]
        if (levels[targets[targets >= 0]] <= level).any():
            raise ValueError(f"its graph has a link on level {level} to a row that is not there")


def _search_everywhere(index: Any, ntotal: int, dim: int) -> None:
    """Searches as wide as can be, with and without a selection of rows, which read every code once."""
    import faiss
    import numpy as np

    from index.segments import ann

    rng = np.random.default_rng(0)
    queries = rng.standard_normal((_QUERIES, dim)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    selector = faiss.IDSelectorBitmap(np.packbits(rng.random(ntotal) < 0.5, bitorder="little"))
    for chosen in (None, selector):
        scores, rows = index.search(queries, min(_K, ntotal), params=ann.search_parameters(index, chosen, 1e6))
        if rows.min() < -1 or rows.max() >= ntotal or np.isnan(scores[rows >= 0]).any():
            raise ValueError("a search returns rows that it does not have, or scores that are no numbers")
