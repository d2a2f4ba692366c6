"""From live rows to a measured version.

A segment is one picklable job: rows stream from Parquet to disk; the approximate index is trained on a sample, filled
in blocks, and tuned to the fastest setting whose recall@10 is three standard errors above the target. Recall of the
version is measured on a thousand held-out images and some hundred queries of each other kind, against one exact pass
over all rows; an image is not an answer to itself. For each kind the narrowest search that reaches the target is found.

The cost of an update is proportional to the change. Changed ids become tombstones, new rows a segment. Ground truth has
130 neighbours of each query and compares only with the new rows. The recall of a query is measured again only if its
nearest ten have changed, or are in a segment that was just written with an approximate index; not if all were found,
none is gone, and that segment finds those that it has. A large segment that few newer rows have joined has its older
rows where they were: whether it still finds them is tried with some of the queries, and with all if it does not. Speed
is measured again if segments have other indexes, or four times as many rows, or searches another width. If a kind's
recall is less than two standard errors above the target, the width is tuned again. The files of the segments are
checked, but not those that were checked or written here within a week and that nobody has written to since. While all
rows are scanned exactly, four small segments of similar size are merged. Beside approximate indexes, newer rows are one
segment, scanned while that costs less than probing lists, then with the quantizers of a larger one, by an index that is
filled further each time. It joins the larger one at a 25th of its rows; new quantizers are trained when the rows have
doubled. A segment is rewritten if more than a third of its rows are tombstones. An update below the target, or whose
new rows are missed, is replaced by a build from all rows, and so is the next one if a query costs twice what it did
after the last such build.

A build reserves its version's number under the lease and removes only its own files. It does not go live with the rows
or the new model of a version that was rolled back, but does with new rows of the live model.
"""
