"""The nearest images of a query in one version.

`ShardedIndex` is to a `Searcher` what `SegmentedIndex` is: all shards are queried at once, merged in the order of
segments, and ranked the same way, so answers are equal to the bit. A query takes two rounds: scores with ids, then the
rows of the k that are left. If a shard does not answer, the query fails, or starts again without it if the caller
allows.
"""

from index.search.searcher import Searcher as Searcher
