"""Conditions on the columns of rows.

Arrow evaluates a filter on the mapped rows into a bitmap, without tombstones, and faiss skips the rows that are not in
it. The fewer rows pass, the more lists are probed (in proportion to the square root, as for a larger k); few rows are
scanned exactly. The rows that pass need not be near the query, so a search is repeated four times as wide until its
results no longer change, and ends with a scan: it returns k results whenever k rows pass.
"""
