"""From live rows to a measured version.

A segment is one picklable job: rows stream from Parquet to disk; the approximate index is trained on a sample, filled
in blocks, and tuned to the fastest setting whose recall@10 is three standard errors above the target. Recall of the
version is measured on a thousand held-out images and some hundred queries of each other kind, left out of their own
answers, against one exact pass over all rows. For each kind the narrowest search that reaches the target is found.

An update costs what the change costs. Changed ids become tombstones, new rows a segment. Ground truth keeps 130
neighbours of each query and compares with the new rows alone. What the index finds of a query's neighbours is measured
again only once the nearest ten are others, or an approximate index is new. All bytes of the segments are checked. Four
small segments of one size are merged, and one that is a third tombstones is rewritten. An update below the target is
replaced by a build from all rows.

A build reserves its version's number under the lease and removes only its own files. From the rows of a version that
was rolled back nothing goes live, nor does another model that was; new rows of the live model do.
"""
