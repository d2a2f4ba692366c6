"""The server's log on stderr: JSON lines for machines, or text for people."""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from api.observe.request_record import notes

LogFormat = Literal["text", "json"]

_USERINFO: Final = re.compile(r"(?<=://)[^\s/?#'\"]+@")
_AFTER_PATH: Final = re.compile(r"(https?://[^\s?#'\"]*)[?#][^\s'\"]+")


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
        message = _printable(_redacted(record.getMessage()) + fields)
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


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _redacted(text: str) -> str:
    """`text` without the secrets of URLs: user and password, and signatures in the query."""
    return _AFTER_PATH.sub(r"\1?…", _USERINFO.sub("…@", text))
