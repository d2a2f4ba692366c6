"""Wait for a condition."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Wait until a condition holds. Raises AssertionError if that takes longer than `seconds`."""
    deadline = (began := time.monotonic()) + seconds
    while not condition():
        if (now := time.monotonic()) >= deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        # Some look through all processes, which would slow down what they wait for.
        time.sleep(min(max(0.02, 4 * (now - began)), 0.2))
        began = time.monotonic()
