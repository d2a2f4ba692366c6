"""Work that rests beside searches, down to the thread in which a model is loaded."""

import sys
import threading
import time
from types import FrameType
from typing import Any

from api.search.giving_way import giving_way
from embedder.models.clip import ClipEmbedder
from jobs.values import DEMO_MODEL


def work(seconds: float) -> float:
    """Calls functions for `seconds`; returns the share of this time in which the thread computed."""
    began, computed = time.perf_counter(), time.thread_time()
    while (passed := time.perf_counter() - began) < seconds:
        nothing()
    return (time.thread_time() - computed) / passed


def nothing() -> None:
    pass


def test_at_most_half_the_time_is_worked() -> None:
    tracing = sys.gettrace()
    with giving_way():
        assert sys.gettrace() is not tracing
        assert work(0.3) < 0.5
    assert sys.gettrace() is tracing


def test_a_model_is_loaded_under_the_trace_function_of_the_caller() -> None:
    threads = set()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        threads.add(threading.current_thread().name.partition("_")[0])

    before = sys.gettrace()
    sys.settrace(note)
    try:
        ClipEmbedder.load(str(DEMO_MODEL), device="cpu")
    finally:
        sys.settrace(before)
    assert "likeness-load" in threads
