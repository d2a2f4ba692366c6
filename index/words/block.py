"""The words of a column in a block of rows."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.collection.rows import number_array, text_array
from index.words.text import Term, words_of

BLOCK_ROWS: Final = 1 << 16
SCHEMA: Final = pa.schema(
    {
        "word": pa.string(),
        "occurrences": pa.list_(pa.struct([("row", pa.uint16()), ("place", pa.uint8())])),
    }
)
"""Sorted words, and for each the rows that have it, ascending, with its first place in each. Further places in a row
follow as another word, with REPEATED at its end. The word "" has the number of words of each row as its place.
"""
REPEATED: Final = "\0"

_PLACES = 256  # a place is modulo this, so words of a longer text that are so far apart may pass for a phrase
_STRIDE = 64
_SEARCHED = 32  # rows that are marked in the time that a binary search takes
_CLEARED = 1_024  # those in the time that it takes to have no row marked
_LAST = chr(0x10FFFF)

Rows = npt.NDArray[np.uint16]
S = TypeVar("S", bound=np.generic)


class Found(NamedTuple):
    """The rows that have a term, ascending; and those of its further occurrences, some of them several times."""

    rows: Rows
    repeats: Rows

    def within(self, rows: Rows) -> Found:
        """Those among some rows, which are ascending."""
        if not len(self.rows) or not len(rows):
            return NOT_FOUND
        return Found(rows[is_among(rows, self.rows)], self.repeats[is_among(self.repeats, rows)])


NOT_FOUND: Final = Found(np.empty(0, np.uint16), np.empty(0, np.uint16))


class BlockWords:
    """The words of a column in up to BLOCK_ROWS rows. `batch` has the SCHEMA, without nulls and with valid rows."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        words: Any = batch.column(0)
        _, bounds, text = words.buffers()
        # In UTF-8, whose order is that of the words: a scalar of Arrow's takes five times as long.
        self._count, self._text = len(words), memoryview(text or b"")
        ends = np.frombuffer(bounds or bytes(4), np.int32, words.offset + len(words) + 1)
        self._bounds = ends[words.offset :].data
        occurrences: Any = batch.column(1)
        self._starts = _numpy(occurrences.offsets, np.int32)
        self._rows: Rows = _numpy(occurrences.values.field(0), np.uint16)
        self._places = _numpy(occurrences.values.field(1), np.uint8)

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]]) -> BlockWords:
        """The words of up to BLOCK_ROWS rows, each with some texts, which no phrase spans."""
        numbers: defaultdict[str, int] = defaultdict(count(1).__next__)
        found, lengths, places = array("I"), array("I"), array("B")
        for row in texts:
            words = [words_of(text) for text in row]
            first = 0
            for part in words:
                found.extend(map(numbers.__getitem__, part))
                places.extend(_RAMP[first % _PLACES : first % _PLACES + len(part)])
                first += len(part) + 1
            lengths.append(sum(map(len, words)))
        return cls._sorted([*numbers], np.asarray(found, np.int64), np.asarray(places), np.asarray(lengths, np.int64))

    @classmethod
    def _sorted(
        cls,
        words: Sequence[str],
        numbers: npt.NDArray[np.int64],
        places: npt.NDArray[np.uint8],
        lengths: npt.NDArray[np.int64],
    ) -> BlockWords:
        """`numbers` are those of the rows' words, from 1."""
        names = ["", *words]
        order = np.array(sorted(range(len(names)), key=names.__getitem__))
        rank = np.empty(len(names), np.uint16 if len(names) <= BLOCK_ROWS else np.uint32)  # NumPy sorts short ones fast
        rank[order] = np.arange(len(names))
        having = np.flatnonzero(lengths)
        ranks = np.concatenate([np.zeros(len(having), rank.dtype), rank[numbers]])
        rows = np.concatenate([having, np.repeat(np.arange(len(lengths)), lengths)]).astype(np.uint16)
        places = np.concatenate([np.minimum(lengths[having], _PLACES - 1).astype(np.uint8), places])
        by_word = np.argsort(ranks, kind="stable")
        ranks, rows, places = ranks[by_word], rows[by_word], places[by_word]
        again = np.zeros(len(rows), bool)
        again[1:] = (ranks[1:] == ranks[:-1]) & (rows[1:] == rows[:-1])
        entries = 2 * ranks.astype(np.int64) + again
        by_entry = np.argsort(entries, kind="stable")  # nearly in order, which takes little time
        sizes = np.bincount(entries, minlength=1)
        filled = np.flatnonzero(sizes)
        starts = np.concatenate([[0], np.cumsum(sizes[filled])]).astype(np.int32)
        columns = [number_array(rows[by_entry]), number_array(places[by_entry])]
        values: pa.Array[Any] = pa.StructArray.from_arrays(columns, ["row", "place"])
        offsets: Any = number_array(starts)
        lists = pa.ListArray.from_arrays(offsets, values)
        texts = text_array(names[order[entry // 2]] + REPEATED * (entry % 2) for entry in filled.tolist())
        return cls(pa.RecordBatch.from_arrays([texts, lists], schema=SCHEMA))

    @cached_property
    def lengths(self) -> npt.NDArray[np.uint8]:
        """The number of words of each row, at most 255, `(BLOCK_ROWS,)`."""
        lengths = np.zeros(BLOCK_ROWS, np.uint8)
        here = slice(0, int(self._starts[int(self._is_at(0, ""))]))
        lengths[self._rows[here]] = self._places[here]
        return lengths

    def find(self, term: Term) -> Found:
        """The rows that have a term."""
        if len(term.words) == 1 and not term.prefix:
            entry = self._entry(term.words[0])
            if not self._is_at(entry, term.words[0]):
                return NOT_FOUND
            again = entry + 1
            end = again + self._is_at(again, term.words[0] + REPEATED)
            start, middle, stop = self._starts[entry], self._starts[again], self._starts[end]
            return Found(self._rows[start:middle], self._rows[middle:stop])
        last = len(term.words) - 1
        slices = [self._occurrences(word, term.prefix and number == last) for number, word in enumerate(term.words)]
        if any(here.start == here.stop for here in slices):
            return NOT_FOUND
        rows = self._followed(slices) if last else np.sort(self._rows[slices[0]])
        first = np.ones(len(rows), bool)
        np.not_equal(rows[1:], rows[:-1], out=first[1:])
        return Found(rows[first], rows[~first])

    def _followed(self, slices: Sequence[slice]) -> Rows:
        """The row of each place where words, at these slices, follow each other, ascending."""
        common = np.ones(BLOCK_ROWS, bool)
        for here in slices:
            present = np.zeros(BLOCK_ROWS, bool)
            present[self._rows[here]] = True
            common &= present
        keys = []
        for number, here in enumerate(slices):
            good = common[self._rows[here]]
            places = self._places[here][good].astype(np.int16) - number
            keys.append(np.sort(self._rows[here][good].astype(np.uint32) * _PLACES + places % _PLACES, kind="stable"))
        found, *others = sorted(keys, key=len)
        for other in others:
            if len(found):
                found = found[other[np.minimum(np.searchsorted(other, found), len(other) - 1)] == found]
        return (found // _PLACES).astype(np.uint16)

    def _occurrences(self, word: str, prefix: bool) -> slice:
        """All occurrences of a word, or of the words that begin with it."""
        start = self._entry(word)
        end = self._entry(word + (_LAST if prefix else REPEATED + REPEATED))
        return slice(int(self._starts[start]), int(self._starts[end]))

    def _is_at(self, entry: int, word: str) -> bool:
        return entry < self._count and self._word(entry) == word.encode()

    def _entry(self, word: str) -> int:
        """The number of the first word that is not before `word`."""
        encoded = word.encode()
        end = _STRIDE * bisect_left(self._some_words, encoded)
        places = range(max(0, end - _STRIDE), min(end, self._count))
        return places.start + bisect_left(places, encoded, key=self._word)

    @cached_property
    def _some_words(self) -> list[bytes]:
        """Every word whose number is a multiple of _STRIDE: comparing with these is faster than reading a word."""
        return [*map(self._word, range(0, self._count, _STRIDE))]

    def _word(self, number: int) -> bytes:
        return self._text[self._bounds[number] : self._bounds[number + 1]].tobytes()


def is_among(rows: Rows, others: Rows) -> npt.NDArray[np.bool_]:
    """Which rows of a block are among others, which are ascending."""
    if len(others) and len(rows) * _SEARCHED < len(others) + _CLEARED:
        among: npt.NDArray[np.bool_] = others.take(others.searchsorted(rows), mode="clip") == rows
        return among
    present = np.zeros(BLOCK_ROWS, bool)
    present[others] = True
    return present[rows]


_RAMP = array("B", [number % _PLACES for number in range(2_000)])


def _numpy(values: Any, kind: type[S]) -> npt.NDArray[S]:
    return np.from_dlpack(values).astype(kind, copy=False)  # `to_numpy` would import pandas
