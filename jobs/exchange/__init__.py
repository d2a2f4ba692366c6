"""Exports a collection's vectors to files for other tools, and imports files of vectors.

An export names its model in its Parquet files, so its import need not, and keeps each vector's bits. An import is one
run, committed like an embedding job's: all of it or nothing.
"""
