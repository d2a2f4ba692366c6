"""The nearest images of a query in one version.

A `Searcher` uses a `ShardedIndex` like a `SegmentedIndex`: all shards are queried at once, and their results are merged
in the order of segments and ranked the same way, so answers are equal to the bit. A query takes two rounds: scores with
ids, then the rows of the k best. If a shard does not answer, the query fails, or starts again without it if the caller
allows that.
"""

from index.search.searcher import Searcher as Searcher
