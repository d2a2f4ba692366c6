"""How often a request to a bucket is tried again."""

import re
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

ATTEMPTS: Final = 9
"""The pauses between them double from 50 ms, to 13 s in all: a store that asks clients to slow down means seconds."""
MAX_WRITES: Final = 3
"""Attempts of a conditional write. obstore does not retry it after a timeout, because it may have succeeded."""
_BROKEN_OFF: Final = re.compile(r"response body", re.IGNORECASE)


def with_retries(operation: Callable[[], T]) -> T:
    """Repeat `operation` if an answer breaks off; other failures of requests are retried by obstore itself."""
    from obstore.exceptions import GenericError  # slow to import, and folders do not need it

    for attempt in range(1, ATTEMPTS):
        try:
            return operation()
        except GenericError as error:
            if not _BROKEN_OFF.search(str(error)):
                raise
            time.sleep(0.05 * 2**attempt)
    return operation()
