"""What is learned of a request on its way through the app, for its log line and the counters."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Notes:
    """`stages` are names and seconds as they came, `problems` slugs of api.errors.PROBLEMS, `key` the API key's name.

    A search in a batch may add to the same notes from another thread: appending needs no lock.
    """

    request_id: str
    stages: list[tuple[str, float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    index: str | None = None
    key: str | None = None
    closed: bool = False


_current: ContextVar[Notes | None] = ContextVar("likeness_notes", default=None)


def notes() -> Notes:
    """The notes of the request at hand; outside of any, new ones that nobody reads."""
    current = _current.get()
    # A task that outlives the request it was begun in keeps that request's context.
    return Notes(request_id="") if current is None or current.closed else current


@contextmanager
def taking_notes(request_id: str) -> Iterator[Notes]:
    """New notes for this task, and for the tasks and threads that it begins, while the block lasts."""
    opened = Notes(request_id=request_id)
    token = _current.set(opened)
    try:
        yield opened
    finally:
        opened.closed = True
        _current.reset(token)
