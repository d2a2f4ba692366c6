"""The rows that have words of a query, ranked by BM25."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from index.arrays import Positions, Slots, by_part
from index.words.block import BLOCK_ROWS, Found, is_among
from index.words.text import Term
from index.words.word_index import WordIndex

_K1, _B = 1.2, 0.75
_LENGTHS = np.arange(256)
_JOINED: Final = 8  # blocks; for few rows, each call of NumPy's takes longer than what it does
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
    """Where the terms of a query are in a segment: for each block and term, the rows of each column."""

    words: WordIndex
    terms: Sequence[Term]
    columns: Sequence[str]
    blocks: Sequence[Sequence[Mapping[str, Found]]]

    @classmethod
    def of(cls, words: WordIndex, query: WordQuery) -> FoundWords:
        names = [name for name in words.columns if name in query.columns]
        blocks = [
            [{name: words.columns[name][number].find(term) for name in names} for term in query.terms]
            for number in range(len(words.starts))
        ]
        return cls(words, query.terms, names, blocks)

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """How many rows have each term, `(columns, terms, blocks)`."""
        shape = len(self.columns), len(self.terms), len(self.blocks)
        counts = [len(block[n][name].rows) for name in self.columns for n in range(shape[1]) for block in self.blocks]
        return np.array(counts, np.int64).reshape(shape)

    @property
    def statistics(self) -> Statistics:
        statistics = Statistics()
        for name, counts in zip(self.columns, self.counts.sum(axis=2).tolist(), strict=True):
            rows, words = self.words.sizes[name]
            statistics.update({(name, _ROWS): rows, (name, _WORDS): words})
            statistics.update({(name, str(term)): count for term, count in zip(self.terms, counts, strict=True)})
        return statistics

    def joined(self, term: int, column: str, blocks: range, among: Slots | None = None) -> tuple[Slots, Slots]:
        """`Found` in some blocks, with rows counted from the first of these; only rows `among` these, which ascend."""
        starts = range(0, len(blocks) * BLOCK_ROWS, BLOCK_ROWS)
        parts = [self.blocks[number][term][column] for number in blocks]
        if among is not None:
            local = np.split((among % BLOCK_ROWS).astype(np.uint16), np.searchsorted(among, starts[1:]))
            parts = list(map(Found.within, parts, local))
        rows, repeats = (np.concatenate(each, dtype=np.intp) for each in zip(*parts, strict=True))
        if len(blocks) > 1:
            rows += np.repeat(starts, [len(part.rows) for part in parts])
            repeats += np.repeat(starts, [len(part.repeats) for part in parts])
        return rows, repeats

    def terms_at(self, positions: Positions) -> list[dict[str, tuple[str, ...]]]:
        """The terms that these rows have, by column."""
        texts = [str(term) for term in self.terms]
        matched: list[dict[str, tuple[str, ...]]] = [{} for _ in positions]
        starts = np.array(self.words.starts)
        for number, slots, rows in by_part(positions, starts):
            few = rows.astype(np.uint16)
            for name in self.columns:
                for text, found in zip(texts, self.blocks[number], strict=True):
                    for slot in slots[is_among(few, found[name].rows)].tolist() if len(found[name].rows) else ():
                        matched[slot][name] = (*matched[slot].get(name, ()), text)
        return matched


class WordRanking:
    """The rows of those added that a query finds: their `positions` and `scores`. A row's score is the sum of its BM25
    for each term, in the column where that is highest.
    """

    def __init__(self, terms: Sequence[Term], statistics: Statistics, k: int | None) -> None:
        self._k = k
        names = dict.fromkeys(name for name, _ in statistics)
        self._gains = [{name: _gain(statistics, name, str(term)) for name in names} for term in terms]
        bounds = [max((gain.weight for gain in gains.values()), default=0.0) for gains in self._gains]
        self._order = sorted(range(len(terms)), key=lambda number: -bounds[number])
        rest = np.cumsum([bounds[number] for number in reversed(self._order)])[::-1] * _ROUNDING
        self._rest = [*rest.tolist(), 0.0]
        """What a row can still get from the terms from the n-th of the order on."""
        self._others = [self._rest[0] - bound for bound in bounds]
        """What a row can get from all terms but the n-th."""
        self._best: list[tuple[Positions, Floats]] = []
        self._least = 0.0
        """The score that a row has to exceed."""

    @property
    def rows(self) -> tuple[Positions, Floats]:
        """Positions, ascending, and scores; of the `k` best, and all that score the same as the last of these."""
        positions, scores = zip((np.empty(0, np.int64), np.empty(0, np.float32)), *self._best, strict=True)
        return np.concatenate(positions), np.concatenate(scores)

    def add(self, found: FoundWords, allowed: npt.NDArray[np.bool_], start: int) -> None:
        """Rank the rows of a segment that are `allowed`, `(ntotal,)`; `start` is the position of its first one."""
        self._foresee(found, allowed)
        sizes, first = found.counts.sum(axis=0), 0
        while first < len(found.blocks):
            # Rows without any of these terms can be among the best only if the rest is worth enough.
            needed = next(number for number, rest in enumerate(self._rest) if rest <= self._least)
            some = sizes[self._order[:needed], first : first + _JOINED].sum(axis=0).cumsum()
            blocks = range(first, first + max(1, int(np.searchsorted(some, BLOCK_ROWS))))
            row, end = (number * BLOCK_ROWS for number in (first, blocks.stop))
            self._keep(*self._rank(found, blocks, needed, allowed[row:end]), start + row)
            first = blocks.stop

    def _foresee(self, found: FoundWords, allowed: npt.NDArray[np.bool_]) -> None:
        """Before rows are ranked, raise the least score to what k rows gain by the rarest term that so many have."""
        blocks = range(len(found.blocks))
        for number in self._order:
            if self._k is None or self._least:
                return
            for name, count in zip(found.columns, found.counts[:, number].sum(axis=1).tolist(), strict=True):
                if self._k <= count <= BLOCK_ROWS:
                    having = found.joined(number, name, blocks)
                    rows, gained = next(self._gains[number][name].of(*having, found.words.lengths[name]))
                    self._raise_least(gained[allowed[rows]])

    def _rank(
        self, found: FoundWords, blocks: range, needed: int, allowed: npt.NDArray[np.bool_]
    ) -> tuple[Slots, Floats]:
        """Rows of some blocks, and scores, that may be among the best; each has one of the `needed` first terms."""
        scores = np.zeros(len(blocks) * BLOCK_ROWS, np.float32)
        for number in self._order[:needed]:
            self._gain(scores, found, blocks, number)
        rows = np.flatnonzero((scores[: len(allowed)] > max(self._least - self._rest[needed], 0.0)) & allowed)
        self._raise_least(scores[rows])
        for number, rest in zip(self._order[needed:], self._rest[needed:], strict=False):
            rows = rows[scores[rows] + rest > self._least]
            self._gain(scores, found, blocks, number, rows)
        return rows, scores[rows]

    def _gain(self, scores: Floats, found: FoundWords, blocks: range, term: int, among: Slots | None = None) -> None:
        """Add to the scores of some blocks what rows gain by a term."""
        bound = self._least - self._others[term]  # rows that gain no more are not among the best
        totals, part = list[tuple[Slots, Floats]](), slice(blocks.start * BLOCK_ROWS, blocks.stop * BLOCK_ROWS)
        for name, counts in zip(found.columns, found.counts[:, term, blocks.start : blocks.stop], strict=True):
            if counts.any():
                having = found.joined(term, name, blocks, among)
                gains = self._gains[term][name].of(*having, found.words.lengths[name][part])
                for rows, gained in gains:
                    good = slice(None) if bound <= 0 else np.flatnonzero(gained > bound)
                    totals.append((rows[good], scores.take(rows[good]) + gained[good]))
        for number, (rows, total) in enumerate(totals):
            scores[rows] = np.maximum(scores.take(rows), total) if number else total

    def _keep(self, rows: Slots, scores: Floats, start: int) -> None:
        self._best.append((rows + start, scores))
        if self._k is not None:
            positions, scores = self.rows
            self._raise_least(scores)
            self._best = [(positions[scores > self._least], scores[scores > self._least])]

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
            ends = np.flatnonzero(np.append(repeats[1:] != repeats[:-1], True))
            rows, counts = repeats[ends], (1 + np.diff(ends, prepend=-1)).astype(np.float32)
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
