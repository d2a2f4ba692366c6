"""Runs of rows, the lease, and every file of a collection.

Text is `string` in files and `large_string` in memory, because the ids or hashes of all rows may exceed 2 GiB, the
limit of an Arrow array of `string`.

The lease is taken and renewed by compare-and-set. It lasts two minutes and is renewed every half minute, so clocks have
to agree within a minute. It is checked before each commit, where a writer that was frozen and lost it stops.
"""

from index.collection.collection import Collection as Collection
from index.collection.collection import writing as writing
