"""What is recorded of a request on its way through the app, and the server's log: JSON lines, or text for people."""

import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from embedder.errors import Rejected

LogFormat = Literal["text", "json"]

_USERINFO: Final = re.compile(r"(?<=://)[^\s/?#'\"]+@")
_AFTER_PATH: Final = re.compile(r"(https?://[^\s?#'\"]*)[?#][^\s'\"]+")


@dataclass(kw_only=True)
class RequestRecord:
    """`stages` are names and seconds. `outcomes` are each fetched or decoded picture's stage, and "ok" or a reason.

    `problems` are slugs of api.errors.PROBLEMS, `lost_shards` the numbers of those that did not answer, `index` is the
    version that answers, `key` the API key's name, `collection` the one of several that was asked.
    The searches of a batch note from several threads: appending needs no lock.
    """

    request_id: str
    stages: list[tuple[str, float]] = field(default_factory=list)
    outcomes: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lost_shards: list[int] = field(default_factory=list)
    index: str | None = None
    key: str | None = None
    collection: str | None = None
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


class Stopwatch:
    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the block's time to a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            notes().stages.append((name, seconds))

    def milliseconds(self) -> dict[str, float]:
        """By stage, and `total` since the watch was made."""
        total = time.perf_counter() - self._started
        return {name: seconds * 1e3 for name, seconds in (*self._seconds.items(), ("total", total))}


def configure_logs(log_format: LogFormat) -> None:
    """Send this process's log to stderr: the server's own messages, and warnings of all libraries."""
    # The file itself: in a replica Ray Serve replaces sys.stderr by a logger of its own.
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each.formatter, JsonLines | TextLines)]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.getLogger("api").setLevel(logging.INFO)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # its warnings name query URLs


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, request_id, the members of `extra={"fields": {…}}`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _redacted(record.getMessage()),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = _redacted(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """The same for people; the traceback of an exception follows on separate lines."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_short(value)}" for name, value in _fields(record).items())
        # A line break that a caller sent must not look like a line of ours.
        text = _redacted(record.getMessage()) + fields
        message = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
        line = f"{_time(record):%Y-%m-%d %H:%M:%S} {record.levelname:<7} {message}"
        return f"{line}\n{_redacted(self.formatException(record.exc_info))}" if record.exc_info else line


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    request_id = notes().request_id
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return ({"request_id": request_id} if request_id else {}) | {
        name: value for name, value in fields.items() if value is not None
    }


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _short(value: object) -> str:
    match value:
        case dict():
            return ",".join(f"{name}:{_short(item)}" for name, item in value.items())
        case list():
            return ",".join(map(_short, value))
        case _:
            return str(value)


def _redacted(text: str) -> str:
    """`text` without the secrets of URLs: user and password, and signatures in the query."""
    return _AFTER_PATH.sub(r"\1?…", _USERINFO.sub("…@", text))
