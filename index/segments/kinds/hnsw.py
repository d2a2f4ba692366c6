"""A graph that links near vectors (HNSW), over vectors or codes: a search follows the links."""

from typing import Any

import faiss
import numpy as np

from index.segments.kinds.kind import IndexKind, Parameters, selecting, steps

_OTHER_LINKS = 16  # bytes for each row


class Hnsw(IndexKind):
    wraps = ("storage",)
    parameter = "efSearch"

    @property
    def _owner(self) -> Any:
        return self.index.hnsw

    @property
    def row_bytes(self) -> int:
        # The links of the lowest level, then offsets, levels, and links of higher levels, which few rows have.
        return super().row_bytes + 4 * int(self.index.hnsw.nb_neighbors(0)) + _OTHER_LINKS

    def search_parameters(self, selector: faiss.IDSelector | None, breadth: float, deeper: float = 1.0) -> Any:
        length = int(np.ceil(self.index.hnsw.efSearch * breadth))
        return faiss.SearchParametersHNSW(efSearch=length, **selecting(selector))

    @property
    def widths(self) -> list[Parameters]:
        return [{"efSearch": float(round(step))} for step in steps(16, 1024, per_octave=8)]

    @property
    def covering_breadth(self) -> float:
        return float(self.index.ntotal / self.index.hnsw.efSearch)

    def require_sound(self, ntotal: int, dim: int) -> None:
        super().require_sound(ntotal, dim)
        graph = self.index.hnsw
        offsets, levels = faiss.vector_to_array(graph.offsets), faiss.vector_to_array(graph.levels)
        sizes, links = faiss.vector_to_array(graph.cum_nneighbor_per_level), faiss.vector_to_array(graph.neighbors)
        fits = (
            len(levels) == ntotal
            and len(offsets) == ntotal + 1
            and len(sizes) > 0
            and sizes[0] == 0
            and (np.diff(sizes) >= 0).all()
            and (ntotal == 0 or (levels.min() >= 1 and levels.max() < len(sizes)))
        )
        ends = len(offsets) and (offsets[0], offsets[-1]) == (0, len(links))
        if not (fits and ends and np.array_equal(np.diff(offsets), sizes[levels])):
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
    for level in range(1, len(sizes) - 1):
        above = np.flatnonzero(levels > level)
        spans = offsets[above].astype(np.int64)[:, np.newaxis] + np.arange(sizes[level], sizes[level + 1])
        targets = links[spans.ravel()]
        if (levels[targets[targets >= 0]] <= level).any():
            raise ValueError(f"its graph has a link on level {level} to a row that is not there")
