"""`ray.init` without its effect on this process's signals."""

import signal
import threading
from typing import Any

import ray


def init(**options: Any) -> None:
    """`ray.init`, after which this process's handler of SIGTERM is restored: Ray's own one exits with 15."""
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if in_main else None
    try:
        ray.init(**options)
    except SystemExit as stop:
        if callable(handler) and stop.code == signal.SIGTERM:  # Ray's was there already
            handler(signal.SIGTERM, None)
        raise
    finally:
        if callable(handler):  # without one, Ray's own at least ends what it started
            signal.signal(signal.SIGTERM, handler)
