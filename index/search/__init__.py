"""The nearest images of a query in one version.

A `VersionSearcher` uses a `ShardedIndex` like a `SegmentedIndex`: all shards are queried at once, and their results are
merged in the order of segments and ranked the same way. So answers are equal to the bit, but for near misses of an
approximate search: each shard ranks as many candidates as the whole index would, and may find more. A `Searcher` is one
whose segments are in this process: it also has what needs all rows; a `JoinedSearcher` is one of several collections. A
query for few matches takes one round: hits with their rows. For more, a second one reads the rows of the k best; words
take one more, for their statistics. If a shard does not answer, the query fails, or starts again without it if the
caller allows that.
"""

from index.search.searcher import Searcher as Searcher
from index.search.version_searcher import VersionSearcher as VersionSearcher
