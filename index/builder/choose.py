"""Chooses the kind of index from the number of vectors and the settings."""

import math
from collections.abc import Sequence

from index.arrays import Vectors
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import FLAT, Option
from index.errors import FactoryError
from index.segments.exact import SCAN_BYTES_PER_SECOND, max_exact_rows
from index.segments.kinds.registry import new_index
from index.segments.kinds.wrappers import principal_dims

_FLOAT = 4  # bytes
_LISTS = 1_000
_USUAL_SPREAD = 64  # dimensions, assumed until a sample is measured
_PCA_STEP, _MAX_PCA = 16, 160
_PCA_SHARE = 0.9  # of the variance is quantized; re-ranking uses the rest too


def choose(ntotal: int, dim: int, settings: IndexSettings) -> list[Option]:
    """The kinds of index for `ntotal` vectors, best first; exactly one is chosen.

    Exact search is chosen while it is fast enough and fits. Beyond that, vectors are found by 4-bit product quantizers
    in inverted lists ("fast scan", André et al., VLDB 2015), re-ranked by 8-bit scalar quantizers if memory allows, and
    scored by the exact vectors. The names are factories of a full segment whose vectors spread over few dimensions.
    FactoryError when nothing fits `max_memory`, and for a factory string that faiss does not know.
    """
    if settings.factory:
        return [_requested(settings.factory, ntotal, dim, settings.max_memory)]
    segments = max(1, -(-ntotal // settings.segment_rows))
    rows = -(-ntotal // segments)
    scan_ms, fast = ntotal * dim * _FLOAT / SCAN_BYTES_PER_SECOND * 1e3, ntotal <= max_exact_rows(settings, dim)
    scan = f"exact; a scan takes about {scan_ms:.1f} ms, {'within' if fast else 'over'} {settings.latency_ms:g} ms"
    kinds = [(FLAT, ntotal * dim * _FLOAT, scan)]
    reasons = {True: "ranked by 8-bit vectors in memory", False: "least memory; ranked by exact vectors from disk"}
    for refine, why in reasons.items():
        kinds.append((ann_factory(rows, dim, refine=refine), segments * _ann_memory(rows, dim, refine=refine), why))
    limit, options = settings.max_memory, list[Option]()
    for name, memory, why in kinds:
        fits = limit is None or memory <= limit
        chosen = fits and (fast or name != FLAT) and not any(option.chosen for option in options)
        why = why if fits else f"{why}; over --max-memory {limit:,}"
        options.append(Option(name=name, memory=memory, chosen=chosen, why=why))
    if not any(option.chosen for option in options):
        raise FactoryError(
            f"no index of {ntotal:,} vectors of {dim} dimensions fits in {limit:,} bytes: the smallest takes "
            f"{min(option.memory for option in options):,}; raise --max-memory, or name a smaller one with --factory"
        )
    return options


def _requested(factory: str, ntotal: int, dim: int, limit: int | None) -> Option:
    memory = ntotal * new_index(factory, dim).row_bytes  # also rejects a wrong string before all rows are read
    if limit is not None and memory > limit:
        raise FactoryError(
            f"{factory!r} takes {memory:,} bytes for {ntotal:,} vectors of {dim} dimensions, over --max-memory "
            f"{limit:,}: raise it, or name a smaller index with --factory"
        )
    return Option(name=factory, memory=memory, chosen=True, why="requested with --factory")


def factory_of(
    options: Sequence[Option], sample: Vectors, rows: int, settings: IndexSettings, *, max_exact_rows: int
) -> str:
    """The factory of a segment of `rows` rows in a version with these options. `sample` `(n, dim)` are some of them."""
    chosen = next(option.name for option in options if option.chosen)
    if chosen == FLAT or rows <= max_exact_rows:
        return FLAT
    if settings.factory:
        return settings.factory
    return ann_factory(rows, sample.shape[1], refine="Refine" in chosen, spread=principal_dims(sample, _PCA_SHARE))


def ann_factory(rows: int, dim: int, *, refine: bool, spread: int = _USUAL_SPREAD) -> str:
    """Inverted lists of 4-bit product quantizers, with a code for each principal dimension. They quantize residuals
    from the list's centroid ("fsr"), whose smaller range makes the sixteen values of a code finer.

    The dimensions are rotated at random ("PCAR"): fast scan rounds the distances in all of them to 8 bits on one scale,
    where narrow dimensions are lost beside a much wider one, such as the common part of CLIP's vectors.

    There are twice as many lists as the square root of the rows, so that a query is compared with about as many
    centroids as codes; but at most a thousand, or the root if that is more, as every row is compared with every one.
    """
    reduced = _quantized(dim, spread)
    pca = f"PCAR{reduced}," if reduced < dim else ""
    return f"{pca}IVF{_nlist(rows)},PQ{reduced}x4fsr" + (",Refine(SQ8)" if refine else "")


def _quantized(dim: int, spread: int) -> int:
    """How many dimensions are quantized."""
    return min(dim, _MAX_PCA, -(-spread // _PCA_STEP) * _PCA_STEP)


def _nlist(rows: int) -> int:
    return max(math.isqrt(rows), min(2 * math.isqrt(rows), _LISTS))


def _ann_memory(rows: int, dim: int, *, refine: bool) -> int:
    """Upper estimate of the index's memory in bytes, however the vectors spread."""
    reduced = _quantized(dim, dim)
    largest = new_index(f"PCAR{reduced},{ann_factory(rows, reduced, refine=refine, spread=reduced)}", dim)
    return rows * largest.row_bytes + largest.fixed_bytes
