"""What all kinds of approximate index have in common."""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import faiss
import numpy as np

from index.arrays import Vectors
from index.errors import DISK_FULL, FactoryError

Parameters = dict[str, float]

_MIN_SAMPLE = 20_000  # vectors


class IndexKind:
    """An index of faiss around `parts`, views that do not keep it alive; by itself one without parts, which compares
    all vectors or their codes (Flat, SQ, PQ). A kind overrides what it does in another way.
    """

    wraps: ClassVar[tuple[str, ...]] = ()
    """faiss's names of the parts; the first one finds the candidates."""
    parameter: ClassVar[str] = ""
    """faiss's name of the parameter that says how far a search looks, or how deep."""

    def __init__(self, index: Any, parts: Sequence[IndexKind]) -> None:
        self.index, self.parts = index, parts

    @property
    def training_rows(self) -> int:
        """The number of vectors to train on."""
        return max((part.training_rows for part in self.parts), default=_MIN_SAMPLE)

    def prepare_training(self, sample: Vectors) -> None:
        """Limit faiss's effort, and train what faiss would train otherwise."""
        for part in self.parts:
            part.prepare_training(sample)

    def train(self, sample: Vectors) -> None:
        """Train on `(n, dim)` float32 unit vectors. FactoryError if they are too few for this index."""
        try:
            self.prepare_training(sample)
            self.index.train(sample)
        except (RuntimeError, MemoryError) as error:
            raise FactoryError(
                f"the index cannot be trained on {len(sample):,} vectors: {faiss_reason(error)}; name one with fewer "
                "lists or codes with --factory"
            ) from error

    def fill(self, blocks: Iterable[Vectors]) -> None:
        """Add vectors. FactoryError if the index does not support that, or skipping rows, as filters do."""
        try:
            for block in blocks:
                first = self.index.ntotal == 0
                self.index.add(block)
                if first:
                    self._check_selects(block[:1])
        except (RuntimeError, MemoryError) as error:
            raise FactoryError(
                "an index of this kind cannot be filled and searched with a selection of its rows: "
                f"{faiss_reason(error)}; name another with --factory"
            ) from error

    def _check_selects(self, query: Vectors) -> None:
        """RuntimeError if a search returns the first row although it is not selected."""
        others = np.ones(self.index.ntotal, bool)
        others[0] = False
        selector = faiss.IDSelectorBitmap(np.packbits(others, bitorder="little"))
        _, found = self.index.search(query, 1, params=self.search_parameters(selector, 1.0))
        if found[0, 0] == 0:
            raise RuntimeError("it returns rows that are not selected")

    def write(self, path: Path) -> None:
        """OSError, with the system's reason, if that fails."""
        try:
            faiss.write_index(self.index, str(path))
        except RuntimeError as error:  # faiss raises nothing else, with the system's error in its text
            code = next((code for code in DISK_FULL if os.strerror(code) in str(error)), errno.EIO)
            raise OSError(code, os.strerror(code), str(path)) from error

    @property
    def row_bytes(self) -> int:
        """Bytes of memory for each vector: its codes, id and links in a graph."""
        whole = 0 if self.parts else int(getattr(self.index, "code_size", 4 * self.index.d))  # others are refused later
        return whole + sum(part.row_bytes for part in self.parts)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of memory for everything else, however many vectors there are."""
        return sum(part.fixed_bytes for part in self.parts)

    def prepare_search(self) -> None:
        """Settings that are not in the index's file."""
        for part in self.parts:
            part.prepare_search()

    @property
    def _owner(self) -> Any:
        """The object of faiss that has the `parameter`."""
        return self.index

    @property
    def parameters(self) -> Parameters:
        """The search parameters of this index and its parts, by faiss's names."""
        # Rounded, because faiss's k_factor has single precision.
        own = {self.parameter: round(float(getattr(self._owner, self.parameter)), 4)} if self.parameter else {}
        return own | {name: value for part in self.parts for name, value in part.parameters.items()}

    def set(self, values: Mapping[str, float]) -> None:
        """Set those of the `parameters` that are among the values."""
        if self.parameter in values:
            whole = isinstance(getattr(self._owner, self.parameter), int)
            setattr(self._owner, self.parameter, int(values[self.parameter]) if whole else values[self.parameter])
        for part in self.parts:
            part.set(values)

    def search_parameters(self, selector: faiss.IDSelector | None, breadth: float, deeper: float = 1.0) -> Any:
        """faiss's parameters for a search among the selected rows, `breadth` times as wide as the index is set to, with
        `deeper` times as many candidates.
        """
        return faiss.SearchParameters(**selecting(selector))

    @property
    def widths(self) -> list[Parameters]:
        """How far a search may look, for tuning, the narrowest first."""
        return self.parts[0].widths if self.parts else [{}]

    @property
    def depths(self) -> list[list[Parameters]]:
        """How many candidates may be ranked again, as multiples of k, for tuning, the fewest first. Further lists go
        deeper.
        """
        return self.parts[0].depths if self.parts else [[{"rescore": factor} for factor in steps(1, 128, per_octave=2)]]

    @property
    def covering_breadth(self) -> float:
        """The breadth with which a search covers the whole index."""
        return self.parts[0].covering_breadth if self.parts else 1.0

    def rows_scanned_meanwhile(self, dim: int) -> int:
        """How many vectors an exact scan compares while a search finds out which codes to read."""
        return self.parts[0].rows_scanned_meanwhile(dim) if self.parts else 0

    def require_sound(self, ntotal: int, dim: int) -> None:
        """ValueError unless all parts of an index fit together: sizes, dimensions, and the rows that they name."""
        self._require_size(ntotal, dim)
        for part in self.parts:
            part.require_sound(ntotal, dim)
        index, name = self.index, type(self.index).__name__
        if isinstance(index, faiss.IndexFlatCodes):
            if index.codes.size() != ntotal * index.code_size:
                raise ValueError(f"{name} has {index.codes.size()} bytes of codes for {ntotal} of {index.code_size}")
        elif type(self) is IndexKind and not isinstance(index, faiss.IndexFastScan):
            raise ValueError(f"{name} cannot be checked: expected lists (IVF), graphs (HNSW) or codes (SQ, PQ, Flat)")

    def _require_size(self, ntotal: int, dim: int) -> None:
        index = self.index
        if (index.ntotal, index.d) != (ntotal, dim) or not index.is_trained:
            name = type(index).__name__
            raise ValueError(f"{name} has {index.ntotal} vectors of {index.d} dimensions: expected {ntotal} of {dim}")


def selecting(selector: faiss.IDSelector | None) -> dict[str, Any]:
    return {} if selector is None else {"sel": selector}


def steps(first: float, last: float, *, per_octave: int) -> list[float]:
    """From `first` to `last`, with `per_octave` equal steps for each doubling."""
    count = math.ceil(per_octave * math.log2(last / first))
    return [min(last, round(first * 2 ** (step / per_octave), 2)) for step in range(count + 1)]


def faiss_reason(error: Exception) -> str:
    """faiss's message without the source location."""
    text = " ".join(str(error).split())
    return re.sub(r"^.* at \S+:\d+: (Error: )?('.*' failed: (?=\S))?", "", text) or text
