"""The rows that have words of a query, ranked by BM25."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from index.arrays import Positions, Slots, by_part
from index.words.block import BLOCK_ROWS, NOT_FOUND, BlockWords, Found, is_among
from index.words.text import Term
from index.words.word_index import WordIndex

_K1, _B = 1.2, 0.75
_LENGTHS = np.arange(256)
_JOINED: Final = 8  # blocks
_ROWS, _WORDS = "", " "  # no term is like these
_ROUNDING: Final = 1.0001
"""Scores are sums of float32, so a bound has to be a little higher."""

Statistics: TypeAlias = Counter[tuple[str, str]]
"""By column and term, how many rows have it; and how many rows and words the column has. Those of several segments can
be added.
"""
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class WordQuery:
    """Looks for rows with any of the `terms` in some of the `columns`: the `k` best, or all. `statistics` are those of
    the whole index; None: of what is searched.
    """

    terms: Sequence[Term]
    columns: Sequence[str]
    k: int | None = None
    statistics: Statistics | None = None


@dataclass(frozen=True, eq=False)
class FoundWords:
    """Where the terms of a query are in blocks, which begin at the positions `starts`: for each block and term, the
    rows of each column. `words` are the columns of each block, `sizes` the statistics of the columns alone.
    """

    terms: Sequence[Term]
    columns: Sequence[str]
    sizes: Statistics
    starts: npt.NDArray[np.int64]
    words: Sequence[Mapping[str, BlockWords]]
    found: Sequence[Sequence[Mapping[str, Found]]]

    @classmethod
    def of(cls, indexes: Sequence[WordIndex], starts: Sequence[int], query: WordQuery) -> FoundWords:
        """In segments that begin at the positions `starts`."""
        sizes, words, firsts = Statistics(), list[Mapping[str, BlockWords]](), list[int]()
        for index, start in zip(indexes, starts, strict=True):
            columns = {name: blocks for name, blocks in index.columns.items() if name in query.columns}
            sizes.update({(name, _ROWS): index.sizes[name][0] for name in columns})
            sizes.update({(name, _WORDS): index.sizes[name][1] for name in columns})
            words += [{name: columns[name][number] for name in columns} for number in range(len(index.starts))]
            firsts += [start + first for first in index.starts]
        found = [[{name: each.find(term) for name, each in block.items()} for term in query.terms] for block in words]
        return cls(
            query.terms, [*dict.fromkeys(name for name, _ in sizes)], sizes, np.array(firsts, np.int64), words, found
        )

    def part(self, blocks: slice) -> FoundWords:
        return replace(self, starts=self.starts[blocks], words=self.words[blocks], found=self.found[blocks])

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many rows have each term, `(columns, terms)`."""
        counts = [
            sum(len(block[number][name].rows) for block in self.found if name in block[number])
            for name in self.columns
            for number in range(len(self.terms))
        ]
        return np.array(counts, np.int64).reshape(len(self.columns), len(self.terms))

    @property
    def statistics(self) -> Statistics:
        names = product(self.columns, map(str, self.terms))
        return self.sizes + Statistics(dict(zip(names, self.counts.ravel().tolist(), strict=True)))

    @cached_property
    def lengths(self) -> Mapping[str, npt.NDArray[np.uint8]]:
        """How many words each row has, `(blocks × BLOCK_ROWS,)`, in the columns that have terms."""
        names = (name for name, counts in zip(self.columns, self.counts, strict=True) if counts.any())
        nothing = np.zeros(BLOCK_ROWS, np.uint8)
        return {
            name: np.concatenate([block[name].lengths if name in block else nothing for block in self.words])
            for name in names
        }

    def rows(self, term: int, column: str, among: Slots | None = None) -> tuple[Slots, Slots]:
        """`Found` in all blocks, each of which counts as BLOCK_ROWS rows; only rows `among` these, which ascend."""
        starts = range(0, len(self.found) * BLOCK_ROWS, BLOCK_ROWS)
        parts = [block[term].get(column, NOT_FOUND) for block in self.found]
        if among is not None:
            local = np.split((among % BLOCK_ROWS).astype(np.uint16), np.searchsorted(among, starts[1:]))
            parts = list(map(Found.within, parts, local))
        rows, repeats = (np.concatenate(each, dtype=np.intp) for each in zip(*parts, strict=True))
        if len(parts) > 1:
            rows += np.repeat(starts, [len(part.rows) for part in parts])
            repeats += np.repeat(starts, [len(part.repeats) for part in parts])
        return rows, repeats

    def positions(self, rows: Slots) -> Positions:
        """The positions of such rows."""
        return rows + (self.starts - np.arange(len(self.starts)) * BLOCK_ROWS).take(rows // BLOCK_ROWS)

    def terms_at(self, positions: Positions) -> list[dict[str, tuple[str, ...]]]:
        """The terms that the rows at these positions have, by column."""
        texts = [str(term) for term in self.terms]
        matched: list[dict[str, tuple[str, ...]]] = [{} for _ in positions]
        for number, slots, rows in by_part(positions, self.starts):
            few = rows.astype(np.uint16)
            for name in self.words[number]:
                for text, found in zip(texts, self.found[number], strict=True):
                    for slot in slots[is_among(few, found[name].rows)].tolist() if len(found[name].rows) else ():
                        matched[slot][name] = (*matched[slot].get(name, ()), text)
        return matched


class WordRanking:
    """The rows that a query finds among those `allowed` in each segment: their positions and scores. A row's score is
    the sum of its BM25 for each term, in the column where that is highest.
    """

    def __init__(
        self, found: FoundWords, statistics: Statistics, k: int | None, allowed: Sequence[npt.NDArray[np.bool_]]
    ) -> None:
        self._k = k
        self._allowed = np.concatenate([*allowed, np.zeros(BLOCK_ROWS, bool)])  # the last block may have fewer rows
        texts = map(str, found.terms)
        self._gains = [{name: _gain(statistics, name, text) for name in found.columns} for text in texts]
        bounds = [max((gain.weight for gain in gains.values()), default=0.0) for gains in self._gains]
        self._order = sorted(range(len(bounds)), key=lambda number: -bounds[number])
        rest = np.cumsum([bounds[number] for number in reversed(self._order)])[::-1] * _ROUNDING
        self._rest = [*rest.tolist(), 0.0]
        """What a row can still get from the terms from the n-th of the order on."""
        self._others = [self._rest[0] - bound for bound in bounds]
        """What a row can get from all terms but the n-th."""
        self._best: list[tuple[Positions, Floats]] = []
        self._least = 0.0
        """The score that a row has to exceed."""
        # Each call of NumPy's takes longer than it does for hundreds of rows.
        parts = [found.part(slice(first, first + _JOINED)) for first in range(0, len(found.starts), _JOINED)]
        self._foresee(found, parts)
        for part in parts:
            needed = self._order[: self._needed]
            if part.counts[:, needed].sum() <= BLOCK_ROWS:
                self._rank(part)
            else:
                for number in range(len(part.starts)):
                    self._rank(part.part(slice(number, number + 1)))

    @property
    def rows(self) -> tuple[Positions, Floats]:
        """Positions, ascending, and scores; of the `k` best, and all that score the same as the last of these."""
        positions, scores = zip((np.empty(0, np.int64), np.empty(0, np.float32)), *self._best, strict=True)
        return np.concatenate(positions), np.concatenate(scores)

    @property
    def _needed(self) -> int:
        """Rows without any of so many terms, the first of the order, cannot be among the best."""
        return next(number for number, rest in enumerate(self._rest) if rest <= self._least)

    def _foresee(self, found: FoundWords, parts: Sequence[FoundWords]) -> None:
        """Raise the least score to what k rows gain by the rarest term that so many have."""
        for number in self._order:
            count, name = max(zip(found.counts[:, number].tolist(), found.columns, strict=True), default=(0, ""))
            if self._k is not None and not self._least and self._k <= count <= BLOCK_ROWS:
                with_text = [part for part in parts if name in part.lengths]
                self._raise_least(np.concatenate([self._single(part, number, name) for part in with_text]))

    def _single(self, found: FoundWords, term: int, column: str) -> Floats:
        """What rows gain by one occurrence of a term."""
        rows, gained = next(self._gains[term][column].of(*found.rows(term, column), found.lengths[column]))
        allowed: Floats = gained[self._allowed[found.positions(rows)]]
        return allowed

    def _rank(self, found: FoundWords) -> None:
        """Rank the rows of some blocks."""
        needed, scores = self._needed, np.zeros(len(found.starts) * BLOCK_ROWS, np.float32)
        for number in self._order[:needed]:
            self._gain(scores, found, number)
        allowed = np.concatenate([self._allowed[start : start + BLOCK_ROWS] for start in found.starts.tolist()])
        rows = np.flatnonzero((scores > max(self._least - self._rest[needed], 0.0)) & allowed)
        self._raise_least(scores[rows])
        for number, rest in zip(self._order[needed:], self._rest[needed:], strict=False):
            rows = rows[scores[rows] + rest > self._least]
            self._gain(scores, found, number, rows)
        rows = rows[scores[rows] > self._least]
        self._best.append((found.positions(rows), scores[rows]))
        if self._k is not None:
            positions, scores = self.rows
            self._raise_least(scores)
            self._best = [(positions[scores > self._least], scores[scores > self._least])]

    def _gain(self, scores: Floats, found: FoundWords, term: int, among: Slots | None = None) -> None:
        """Add what rows gain by a term to their scores."""
        bound = self._least - self._others[term]  # rows that gain no more are not among the best
        totals = list[tuple[Slots, Floats]]()
        for name, count in zip(found.columns, found.counts[:, term].tolist(), strict=True):
            if count:
                for rows, gained in self._gains[term][name].of(*found.rows(term, name, among), found.lengths[name]):
                    good = slice(None) if bound <= 0 else np.flatnonzero(gained > bound)
                    totals.append((rows[good], scores.take(rows[good]) + gained[good]))
        for number, (rows, total) in enumerate(totals):
            scores[rows] = np.maximum(scores.take(rows), total) if number else total

    def _raise_least(self, scores: Floats) -> None:
        """The least score, if these are the scores of some rows."""
        if self._k is not None and len(scores) >= self._k:
            last = np.partition(scores, -self._k)[-self._k]
            self._least = max(self._least, float(np.nextafter(last, np.float32(0))))


@dataclass(frozen=True, eq=False)
class _Gain:
    """BM25 of a term in a column: `weight * count / (count + penalty)`, by the length of the text."""

    weight: float
    penalties: Floats

    def of(self, rows: Slots, repeats: Slots, lengths: npt.NDArray[np.uint8]) -> Iterator[tuple[Slots, Floats]]:
        """Rows and what they gain; then again those with further occurrences, which gain more."""
        yield rows, self._once.take(lengths.take(rows))
        if len(repeats):
            starts = np.append(0, 1 + np.flatnonzero(repeats[1:] != repeats[:-1]))
            rows, counts = repeats[starts], (1 + np.diff(np.append(starts, len(repeats)))).astype(np.float32)
            yield rows, np.float32(self.weight) * counts / (counts + self.penalties.take(lengths.take(rows)))

    @cached_property
    def _once(self) -> Floats:
        once: Floats = (self.weight / (1 + self.penalties)).astype(np.float32)
        return once


def _gain(statistics: Statistics, column: str, term: str) -> _Gain:
    rows, having = statistics[column, _ROWS], statistics[column, term]
    idf = np.log1p((rows - having + 0.5) / (having + 0.5))
    mean = statistics[column, _WORDS] / max(1, rows)
    penalties = _K1 * (1 - _B + _B * _LENGTHS / max(1.0, mean))
    return _Gain(float(idf) * (_K1 + 1) if having else 0.0, penalties.astype(np.float32))
