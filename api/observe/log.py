"""The record of a request on its way through the app, and the server's log, as JSON lines or text."""

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
    """Facts about a request, for its log line and metrics.

    `stages` are names and seconds; `outcomes` are the stage ("fetch" or "decode") of each picture, and "ok" or a
    reason; `problems` are slugs; `lost_shards` are the numbers of shards that did not answer;
    `index` is the version that answers; `key` is the API key's name; `collection` is set if the server has several.
    The searches of a batch append from several threads, which needs no lock.
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

    def log_fields(self) -> dict[str, Any]:
        """What the log line says of the request. Milliseconds of a stage are summed over the searches of a batch."""
        stages: dict[str, float] = {}
        for name, seconds in self.stages:
            stages[name] = stages.get(name, 0.0) + seconds * 1e3
        return {
            "stages_ms": {name: round(ms, 3) for name, ms in stages.items()} or None,
            "collection": self.collection,
            "index": self.index,
            "problems": sorted(set(self.problems)) or None,
            "key": self.key,
        }


_current: ContextVar[RequestRecord | None] = ContextVar("likeness_request_record", default=None)


def current_record() -> RequestRecord:
    """The record of the current request; outside a request, a new one that nobody reads."""
    current = _current.get()
    # A task that outlives its request keeps that request's context.
    return RequestRecord(request_id="") if current is None or current.closed else current


def is_awaited() -> bool:
    """Whether the current request still waits for its answer; outside a request, True."""
    current = _current.get()
    return current is None or not current.closed


@contextmanager
def record_request(request_id: str) -> Iterator[RequestRecord]:
    """A new record for this task, and for the tasks and threads that it starts, until the block ends."""
    record = RequestRecord(request_id=request_id)
    token = _current.set(record)
    try:
        yield record
    finally:
        record.closed = True
        _current.reset(token)


@contextmanager
def record_outcome(stage: str) -> Iterator[None]:
    """Records whether a picture passed the block, or why not."""
    try:
        yield
    except Rejected as error:
        current_record().outcomes.append((stage, error.reason))
        raise
    current_record().outcomes.append((stage, "ok"))


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
            current_record().stages.append((name, seconds))

    def milliseconds(self) -> dict[str, float]:
        """Milliseconds by stage, and `total` since the stopwatch was created."""
        total = time.perf_counter() - self._started
        return {name: seconds * 1e3 for name, seconds in (*self._seconds.items(), ("total", total))}


def configure_logs(log_format: LogFormat) -> None:
    """Send this process's log to stderr: the server's messages, and warnings of all libraries."""
    # Not sys.stderr, which Ray Serve replaces with its own logger in a replica.
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    for previous in [each for each in root.handlers if isinstance(each.formatter, JsonLines | TextLines)]:
        root.removeHandler(previous)
    root.addHandler(handler)
    logging.getLogger("api").setLevel(logging.INFO)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # its warnings contain query URLs


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, request_id, and members of `extra={"fields": {…}}`."""

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
    """The same as text; an exception's traceback follows on separate lines."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_short(value)}" for name, value in _fields(record).items())
        # A line break in a caller's text must not forge a log line.
        text = _redacted(record.getMessage()) + fields
        message = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
        line = f"{_time(record):%Y-%m-%d %H:%M:%S} {record.levelname:<7} {message}"
        return f"{line}\n{_redacted(self.formatException(record.exc_info))}" if record.exc_info else line


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: Mapping[str, Any] = {"request_id": current_record().request_id or None, **getattr(record, "fields", {})}
    return {name: value for name, value in fields.items() if value is not None}


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
    """`text` without secrets in URLs: user, password and query, which may have a signature."""
    return _AFTER_PATH.sub(r"\1?…", _USERINFO.sub("…@", text))
