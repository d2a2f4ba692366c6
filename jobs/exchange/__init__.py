"""Vectors for other tools, and from them: the files of a collection's rows, and rows from files of vectors.

An export names its model in its Parquet files, so that it can be imported without naming it again, and keeps each
vector's bits. An import is one run, committed as a job of embedding commits its own: all of it or nothing.
"""
