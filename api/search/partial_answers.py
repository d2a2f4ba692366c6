"""Decides whether a query fails when a shard does not answer, or the other shards answer it."""

from collections.abc import Callable
from typing import TypeVar

from api.problems import ShardUnavailable
from index.search import VersionSearcher
from index.search.sharded_index import ShardsLostError

T = TypeVar("T")


def ask_shards(
    searcher: VersionSearcher, question: Callable[[VersionSearcher], T], *, allow_partial: bool = False
) -> tuple[T, VersionSearcher]:
    """The answer to `question`, and the searcher that gave it: this one, or with `allow_partial` one of the shards that
    answer. Raises ShardUnavailable if shards do not answer and that is not allowed, or if none answers.
    """
    while True:
        try:
            return question(searcher), searcher
        except ShardsLostError as error:
            if not (allow_partial and len(error.rest)):
                raise ShardUnavailable(f"{error}: try again soon", retry_after_s=2) from error
            # The answer is as if there were only the other shards: results of the first round are discarded.
            searcher = VersionSearcher(searcher.manifest, error.rest)
