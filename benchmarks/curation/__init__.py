"""Benchmarks of `match`, `select`, few-shot labels and saved searches."""
