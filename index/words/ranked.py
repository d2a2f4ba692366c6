"""The rows that have words of a query, ranked by BM25."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from index.arrays import Positions, by_part
from index.words.block import BLOCK_ROWS, BlockWords, Found, is_among
from index.words.text import Term
from index.words.word_index import WordIndex

_K1, _B = 1.2, 0.75
_LENGTHS = np.arange(256)
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

    @property
    def statistics(self) -> Statistics:
        counts = Statistics()
        for name in self.columns:
            rows, words = self.words.sizes[name]
            counts.update({(name, _ROWS): rows, (name, _WORDS): words})
            for number, term in enumerate(self.terms):
                counts[name, str(term)] += sum(len(block[number][name].rows) for block in self.blocks)
        return counts

    def terms_at(self, positions: Positions) -> list[dict[str, tuple[str, ...]]]:
        """The terms that these rows have, by column."""
        texts = [str(term) for term in self.terms]
        matched: list[dict[str, tuple[str, ...]]] = [{} for _ in positions]
        starts = np.array(self.words.starts)
        for number, slots, rows in by_part(positions, starts):
            for name in self.columns:
                for text, found in zip(texts, self.blocks[number], strict=True):
                    if not len(found[name].rows):
                        continue
                    for slot in slots[is_among(rows.astype(np.uint16), found[name].rows)].tolist():
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
        for number, first in enumerate(found.words.starts):
            blocks = {name: found.words.columns[name][number] for name in found.columns}
            rows, scores = self._block(found.blocks[number], blocks, allowed[first : first + BLOCK_ROWS])
            self._keep(rows + (start + first), scores)

    def _block(
        self, terms: Sequence[Mapping[str, Found]], blocks: Mapping[str, BlockWords], allowed: npt.NDArray[np.bool_]
    ) -> tuple[Positions, Floats]:
        """Rows of a block, and scores, that may be among the best."""
        scores = np.zeros(BLOCK_ROWS, np.float32)
        least, done = self._least, 0
        # Rows without any of these terms can be among the best only if the rest is worth enough.
        while done < len(self._order) and self._rest[done] > least:
            number = self._order[done]
            scores += _gained(terms[number], blocks, self._gains[number])
            done += 1
        candidates = np.flatnonzero((scores[: len(allowed)] > max(least - self._rest[done], 0.0)) & allowed)
        for place in range(done, len(self._order)):
            candidates = candidates[scores[candidates] + self._rest[place] > least]
            found = {name: each.within(candidates) for name, each in terms[self._order[place]].items()}
            scores[candidates] += _gained(found, blocks, self._gains[self._order[place]])[candidates]
        return candidates, scores[candidates]

    def _keep(self, positions: Positions, scores: Floats) -> None:
        good = scores > self._least
        self._best.append((positions[good], scores[good]))
        if self._k is None:
            return
        positions, scores = self.rows
        if len(scores) > self._k:
            last = np.partition(scores, -self._k)[-self._k]
            self._least = float(np.nextafter(last, np.float32(0)))
            self._best = [(positions[scores >= last], scores[scores >= last])]


@dataclass(frozen=True, eq=False)
class _Gain:
    """BM25 of a term in a column: `weight * count / (count + penalty)`, by the length of the text."""

    weight: float
    penalties: Floats

    def of(self, found: Found, lengths: npt.NDArray[np.uint8]) -> Iterator[tuple[npt.NDArray[np.intp], Floats]]:
        """Rows and what they gain; then again those with further occurrences, which gain more."""
        rows = found.rows.astype(np.intp)  # NumPy would convert them at each use
        yield rows, self._once.take(lengths.take(rows))
        if len(found.repeats):
            ends = np.flatnonzero(np.append(found.repeats[1:] != found.repeats[:-1], True))
            rows, counts = found.repeats[ends].astype(np.intp), (1 + np.diff(ends, prepend=-1)).astype(np.float32)
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


def _gained(by_column: Mapping[str, Found], blocks: Mapping[str, BlockWords], gains: Mapping[str, _Gain]) -> Floats:
    """What the rows of a block gain by a term, `(BLOCK_ROWS,)`."""
    best, is_first = np.zeros(BLOCK_ROWS, np.float32), True
    for name, found in by_column.items():
        if len(found.rows):
            for rows, gained in gains[name].of(found, blocks[name].lengths):
                best[rows] = gained if is_first else np.maximum(best[rows], gained)
                is_first = False
    return best
