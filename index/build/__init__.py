"""From live rows to a measured version.

A segment is one picklable job: rows stream from Parquet to disk; the approximate index is trained on a sample, filled
in blocks, and tuned to the fastest setting whose recall@10 is three standard errors above the target. Recall of the
version is measured on a thousand held-out images and some hundred queries of each other kind, against one exact pass
over all rows; an image is not an answer to itself. For each kind the narrowest search that reaches the target is found.

The cost of an update is proportional to the change. Changed ids become tombstones, new rows a segment. Ground truth has
130 neighbours of each query and compares only with the new rows. The recall of a query is measured again only if its
nearest ten have changed, or an approximate index is new. All bytes of the segments are checked. Four small segments of
similar size are merged, and a segment is rewritten if more than a third of its rows are tombstones. An update below the
target is replaced by a build from all rows.

A build reserves its version's number under the lease and removes only its own files. It does not go live with the rows
or the new model of a version that was rolled back, but does with new rows of the live model.
"""
