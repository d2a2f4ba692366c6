"""Benchmarks of `match`, `select` and few-shot labels."""
