"""The catalog of a collection: DuckDB over the facts of its runs, which are all columns of their rows but vectors."""
