"""Runs of rows, the lease, and every file of a collection.

Texts are `string` in files and `large_string` in memory, because the ids or hashes of all rows may exceed the 2 GiB
that Arrow puts into one array of strings.

The lease is taken and renewed by compare and set. It lasts two minutes and is renewed every half minute, so clocks have
to agree within a minute. It is checked before each commit: a writer that was frozen and lost it stops there.
"""

from index.collection.collection import Collection as Collection
from index.collection.collection import writing as writing
