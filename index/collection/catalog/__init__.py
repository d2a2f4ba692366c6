"""The catalog of a collection: DuckDB over the facts of its runs, which are all columns of their rows but vectors.

A `Workspace` has tables and views of its own, and answers SQL; a `Catalog` is one that has the rows of runs.
"""
