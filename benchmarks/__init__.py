"""Measurements of what the project claims: `python -m benchmarks.NAME [--quick]`."""
