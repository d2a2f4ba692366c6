"""The kinds of approximate index, a class each: see `registry`."""
