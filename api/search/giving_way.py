"""Long work beside threads that answer searches."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_WORK_S: Final = 0.0005
_REST_S: Final = 0.001


@contextmanager
def giving_way() -> Iterator[None]:
    """This thread rests for 1 ms at the first call of a Python function after each 0.5 ms.

    A search takes the interpreter a hundred times, once for each operation of its model, and each time waits for a
    thread that computes in Python. While a small model was loaded in 0.1 s, searches took five times as long; with
    these rests it is loaded in 0.5 s, and searches take a third longer. Only `sys.settrace` makes a library's code
    rest. It replaces this thread's own trace function meanwhile; `ClipEmbedder.load` hands it on to the thread in
    which it loads.
    """
    rested = time.perf_counter()

    def rest(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal rested
        if time.perf_counter() - rested > _WORK_S:
            time.sleep(_REST_S)
            rested = time.perf_counter()

    before = sys.gettrace()
    sys.settrace(rest)
    try:
        yield
    finally:
        sys.settrace(before)
