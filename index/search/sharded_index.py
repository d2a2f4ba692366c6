"""The shards of a version as one: queried in parallel, with the same answers as `SegmentedIndex`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from index.arrays import A, Ids, Parts, Positions, Scores, Vectors, by_part, merged, shifted
from index.errors import CollectionError
from index.filters.facets import Counts
from index.filters.filter import Filter
from index.search.shard import ShardSegments

Call: TypeAlias = tuple[str, tuple[Any, ...]]
"""A method of Shard and its arguments."""

Ask: TypeAlias = Callable[[Mapping[int, Call]], Mapping[int, Any]]
"""Calls shards by their numbers, in parallel. Shards that do not answer are missing from the result."""


class ShardedIndex:
    """Searches the shards `held`, by their numbers. ShardsLostError when one does not answer. Thread-safe."""

    def __init__(self, held: Mapping[int, ShardSegments], schema: pa.Schema, dim: int, ask: Ask) -> None:
        self._held = {number: held[number] for number in sorted(held) if held[number].segments}
        self._numbers = list(self._held)
        self._starts = np.array([part.start for part in self._held.values()], np.int64)
        self._dim = dim
        self._ask = ask
        self.schema = schema

    def __len__(self) -> int:
        return len(self._held)

    @property
    def live_count(self) -> int:
        return sum(part.live for part in self._held.values())

    def count_values(self, columns: Sequence[str], where: Filter | None = None) -> Counts:
        """The values of these columns, and how many rows have each."""
        return Counts.total(self._all("count_values", list(columns), where and where.key), columns)

    def search_with_ids(
        self, queries: Vectors, k: int, where: Filter | None = None, *, width: float = 1.0
    ) -> tuple[Scores, Positions, Parts, Ids]:
        found = zip(self._all("search", queries, k, where and where.key, width), self._starts, strict=True)
        scores, positions, parts, ids = merged(
            [(scores, shifted(rows, start), *more) for (scores, rows, *more), start in found], k
        )
        return scores, positions, parts, ids

    def positions(self, ids: pa.Array[Any]) -> Positions:
        """Where the live rows of these ids are; -1 for an id that has none, so all shards have to answer."""
        if not len(ids):
            return np.empty(0, np.int64)
        texts = ids.to_pylist()
        answers = self._ask(dict.fromkeys(self._numbers, ("positions", (texts,))))
        found = np.full(len(texts), -1, np.int64)
        for number, positions in answers.items():
            found = np.where(positions >= 0, positions + self._held[number].start, found)
        if (found < 0).any():
            self._require_all(answers)
        return found

    def vectors(self, positions: Positions) -> Vectors:
        return self._filled(np.empty((len(positions), self._dim), np.float32), positions, "vectors")

    def ids(self, positions: Positions) -> Ids:
        return self._filled(np.empty(len(positions), object), positions, "ids")

    def rows(self, positions: Positions, columns: Sequence[str]) -> list[dict[str, Any]]:
        return self._filled(np.empty(len(positions), object), positions, "rows", list(columns)).tolist()

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        answers = self._ask(dict.fromkeys(self._numbers, (method, arguments)))
        self._require_all(answers)
        return [answers[number] for number in self._numbers]

    def _filled(self, found: A, positions: Positions, method: str, *arguments: Any) -> A:
        """`found`, filled with the answers of the shards that hold these positions."""
        parts = {self._numbers[part]: (slots, local) for part, slots, local in by_part(positions, self._starts)}
        calls = {number: (method, (local, *arguments)) for number, (_, local) in parts.items()}
        answers = self._ask(calls) if calls else {}
        self._require_all(answers, calls)
        for number, (slots, _) in parts.items():
            found[slots] = answers[number]
        return found

    def _require_all(self, answers: Mapping[int, Any], calls: Mapping[int, Any] | None = None) -> None:
        lost = [number for number in (self._numbers if calls is None else calls) if number not in answers]
        if lost:
            rest = {number: part for number, part in self._held.items() if number not in lost}
            missing = sum(self._held[number].live for number in lost)
            named = f"shard {lost[0]} does" if len(lost) == 1 else f"shards {', '.join(map(str, lost))} do"
            raise ShardsLostError(
                f"{named} not answer: {missing:,} of {self.live_count:,} images cannot be searched",
                ShardedIndex(rest, self.schema, self._dim, self._ask),
            )


class ShardsLostError(CollectionError):
    """Searchers that hold a part of the index do not answer. `rest` are the `ShardedIndex` without it."""

    def __init__(self, message: str, rest: ShardedIndex) -> None:
        super().__init__(message)
        self.rest = rest
