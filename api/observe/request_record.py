"""Facts about a request, collected on its way through the app for its log line and the metrics."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from embedder.errors import Rejected


@dataclass(kw_only=True)
class RequestRecord:
    """`stages` are names and seconds. `outcomes` are each fetched or decoded picture's stage, and "ok" or a reason.

    `problems` are slugs of api.errors.PROBLEMS, `lost_shards` the numbers of those that did not answer, `index` is the
    version that answers, `key` the API key's name.
    The searches of a batch note from several threads: appending needs no lock.
    """

    request_id: str
    stages: list[tuple[str, float]] = field(default_factory=list)
    outcomes: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lost_shards: list[int] = field(default_factory=list)
    index: str | None = None
    key: str | None = None
    closed: bool = False


_current: ContextVar[RequestRecord | None] = ContextVar("likeness_notes", default=None)


def notes() -> RequestRecord:
    """The notes of the current request; outside of any, new ones that nobody reads."""
    current = _current.get()
    # A task that outlives its request keeps that request's context.
    return RequestRecord(request_id="") if current is None or current.closed else current


def is_awaited() -> bool:
    """Whether the current request still waits for its answer; outside of any, always."""
    current = _current.get()
    return current is None or not current.closed


@contextmanager
def taking_notes(request_id: str) -> Iterator[RequestRecord]:
    """New notes for this task, and for the tasks and threads that it starts, while the block lasts."""
    opened = RequestRecord(request_id=request_id)
    token = _current.set(opened)
    try:
        yield opened
    finally:
        opened.closed = True
        _current.reset(token)


@contextmanager
def record_outcome(stage: str) -> Iterator[None]:
    """Notes whether a picture passed the block, or why not."""
    try:
        yield
    except Rejected as error:
        notes().outcomes.append((stage, error.reason))
        raise
    notes().outcomes.append((stage, "ok"))
