"""The shards of a version as one index: queried in parallel, with the answers of `SegmentedIndex`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.arrays import A, Ids, Positions, Vectors, by_part
from index.errors import CollectionError
from index.filters.columns import Column
from index.filters.facets import Counts
from index.filters.filter import Filter
from index.search.result_set import SetPage, SetRequest
from index.search.shard import ShardSegments
from index.words.ranked import Statistics

Call: TypeAlias = tuple[str, tuple[Any, ...]]
"""A method of `Shard`, and its arguments."""

CallShards: TypeAlias = Callable[[Mapping[int, Call]], Mapping[int, Any]]
"""Calls shards by their numbers, in parallel. Shards that do not answer are missing from the result."""


class ShardedIndex:
    """Searches shards, given by their numbers. ShardsLostError when one does not answer. Thread-safe."""

    def __init__(self, shards: Mapping[int, ShardSegments], schema: pa.Schema, dim: int, call: CallShards) -> None:
        self._shards = {number: shards[number] for number in sorted(shards) if shards[number].segments}
        self._numbers = list(self._shards)
        self._starts = np.array([shard.start for shard in self._shards.values()], np.int64)
        self._dim = dim
        self._call = call
        self.schema = schema

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def live_count(self) -> int:
        return sum(shard.live for shard in self._shards.values())

    def count_values(self, columns: Sequence[str], where: Filter | None = None) -> Counts:
        """The values of these columns, and how many rows have each."""
        return Counts.total(self._all("count_values", list(columns), where), columns)

    def page(self, request: SetRequest) -> SetPage:
        """Like `SetSearch.page`. For words, shards are asked for their statistics first."""
        if request.words is not None:
            statistics = sum(self._all("word_statistics", request.words), Statistics())
            request = replace(request, words=replace(request.words, statistics=statistics))
        pages = zip(self._all("page", request), self._starts.tolist(), strict=True)
        return SetPage.merged([page.shifted(start) for page, start in pages], request)

    def positions(self, ids: pa.Array[Any]) -> Positions:
        """Positions of the live rows of these ids. -1 for an id without one, which only all shards can tell."""
        if not len(ids):
            return np.empty(0, np.int64)
        texts = ids.to_pylist()
        answers = self._call(dict.fromkeys(self._numbers, ("positions", (texts,))))
        result = np.full(len(texts), -1, np.int64)
        for number, positions in answers.items():
            result = np.where(positions >= 0, positions + self._shards[number].start, result)
        if (result < 0).any():
            self._require_all(answers)
        return result

    def vectors(self, positions: Positions) -> Vectors:
        return self._read(np.empty((len(positions), self._dim), np.float32), positions, "vectors")

    def ids(self, positions: Positions) -> Ids:
        return self._read(np.empty(len(positions), object), positions, "ids")

    def sort_keys(self, positions: Positions, column: Column) -> npt.NDArray[np.object_]:
        return self._read(np.empty(len(positions), object), positions, "sort_keys", column)

    def rows(self, positions: Positions, columns: Sequence[str]) -> list[dict[str, Any]]:
        return self._read(np.empty(len(positions), object), positions, "rows", list(columns)).tolist()

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        answers = self._call(dict.fromkeys(self._numbers, (method, arguments)))
        self._require_all(answers)
        return [answers[number] for number in self._numbers]

    def _read(self, out: A, positions: Positions, method: str, *arguments: Any) -> A:
        """`out`, filled with the answers of the shards that hold these positions."""
        parts = {self._numbers[part]: (slots, local) for part, slots, local in by_part(positions, self._starts)}
        calls = {number: (method, (local, *arguments)) for number, (_, local) in parts.items()}
        answers = self._call(calls) if calls else {}
        self._require_all(answers, calls)
        for number, (slots, _) in parts.items():
            out[slots] = answers[number]
        return out

    def _require_all(self, answers: Mapping[int, Any], calls: Mapping[int, Any] | None = None) -> None:
        lost = [number for number in (self._numbers if calls is None else calls) if number not in answers]
        if lost:
            rest = {number: shard for number, shard in self._shards.items() if number not in lost}
            missing = sum(self._shards[number].live for number in lost)
            named = f"shard {lost[0]} does" if len(lost) == 1 else f"shards {', '.join(map(str, lost))} do"
            raise ShardsLostError(
                f"{named} not answer: {missing:,} of {self.live_count:,} images cannot be searched",
                ShardedIndex(rest, self.schema, self._dim, self._call),
            )


class ShardsLostError(CollectionError):
    """Searchers that hold a part of the index do not answer. `rest` is the index without that part."""

    def __init__(self, message: str, rest: ShardedIndex) -> None:
        super().__init__(message)
        self.rest = rest
