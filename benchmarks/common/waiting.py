"""Wait for a condition."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Wait until a condition holds. Raises AssertionError if that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)
