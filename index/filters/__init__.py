"""Conditions on the columns of rows.

Arrow evaluates a filter on the mapped rows into a bitmap, less the tombstones, and faiss skips rows that are not in it.
The fewer rows qualify, the more lists are probed (by the square root, as for a larger k); few enough rows are scanned
exactly. The qualifying rows need not lie near the query, so a search is repeated four times as wide until its answer no
longer changes, and ends with a scan: k results come back whenever k rows qualify.
"""
