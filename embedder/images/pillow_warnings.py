"""Mutes Pillow's warnings: the decoder reports by exceptions."""

import threading
import warnings


class QuietPillow:
    """Ignores Pillow's warnings while any thread decodes.

    `warnings.catch_warnings` is not thread-safe: a thread that leaves would restore the filters while another decodes.
    This adds a filter with the first thread that enters and removes it with the last one that leaves.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._filter: tuple[object, ...] | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                warnings.filterwarnings("ignore", module=r"PIL\.")
                self._filter = warnings.filters[0]

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._filter in warnings.filters:
                warnings.filters.remove(self._filter)  # type: ignore[attr-defined]


quiet_pillow = QuietPillow()
