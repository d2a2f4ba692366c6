"""URIs of pictures: their scheme, the part of a file that a fragment names, and their form in messages."""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from embedder.errors import FetchError

WEB_SCHEMES = ("http", "https")

BYTES_MARK, ROW_MARK, FRAME_MARK = "#bytes=", "#row=", "#t="
"""Where a fragment begins that names a part of a file; see `split_fragment`."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FRAGMENT = re.compile(
    rf"(?P<file>.+)(?:{BYTES_MARK}(?P<first>[0-9]{{1,18}})-(?P<last>[0-9]{{1,18}})"
    rf"|{ROW_MARK}(?P<row>[0-9]{{1,18}})&column=(?P<column>.+)"
    rf"|{FRAME_MARK}(?P<time>[0-9]{{1,9}}(?:\.[0-9]{{1,6}})?))",
    re.DOTALL,
)
_USERINFO = re.compile(r"(?<=://)[^/?#\\]*@")
_MAX_PRINTED = 300


@dataclass(frozen=True)
class ByteRange:
    """From `first` to `last`, inclusive; `last` is `first` − 1 for an empty range."""

    first: int
    last: int


@dataclass(frozen=True)
class Cell:
    """A cell of a table, with rows counted from 0."""

    row: int
    column: str


@dataclass(frozen=True)
class FrameAt:
    """The first frame of a video at or after this time, in seconds, as in W3C's media fragments."""

    time: float


def scheme_of(uri: str) -> str:
    """The scheme of a URI, in lower case; "file" for a plain path."""
    match = _SCHEME.match(uri)
    return match[1].lower() if match else "file"


def split_fragment(uri: str) -> tuple[str, ByteRange | Cell | FrameAt | None]:
    """The file's URI, and the part of the file that the fragment names. Any other "#" belongs to the file's name, or
    begins a web address's fragment, such as a time, which browsers do not send.
    """
    match = _FRAGMENT.fullmatch(uri)
    if match is None:
        return uri, None
    if match["row"] is not None:
        return match["file"], Cell(int(match["row"]), match["column"])
    if match["time"] is not None and scheme_of(uri) in WEB_SCHEMES:
        return uri, None
    if match["time"] is not None:
        return match["file"], FrameAt(float(match["time"]))
    part = ByteRange(int(match["first"]), int(match["last"]))
    if part.last < part.first - 1:
        raise fetch_error(uri, "bad_uri", "a byte range must not end before it starts")
    return match["file"], part


def member_uri(file: str, first: int, size: int) -> str:
    """The URI of `size` bytes of a file."""
    return f"{file}{BYTES_MARK}{first}-{first + size - 1}"


def cell_uri(file: str, row: int, column: str) -> str:
    """The URI of a cell of a Parquet file."""
    return f"{file}{ROW_MARK}{row}&column={column}"


def has_mark(path: str) -> bool:
    """Whether a file's path could be mistaken for that of a part of a file."""
    return BYTES_MARK in path or ROW_MARK in path or FRAME_MARK in path


def local_path(uri: str) -> str:
    """The path in a plain path or a file:// URI, whose percent-encoding is decoded."""
    match = _SCHEME.match(uri)
    if match is None:
        return uri
    host, slash, rest = uri[match.end() :].partition("/")
    if host not in ("", "localhost") or not slash:
        raise fetch_error(uri, "bad_uri", "expected file:///path or a plain path")
    return unquote("/" + rest, errors="surrogateescape")


def fetch_error(uri: str, reason: str, message: str, *, retryable: bool = False) -> FetchError:
    """An error whose message begins with the URI."""
    return FetchError(reason, f"{printable_uri(uri)}: {message}", retryable=retryable)


def printable_uri(uri: str) -> str:
    """A URI for messages: on one line, shortened, without user name and password."""
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in _USERINFO.sub("", uri))
    return text if len(text) <= _MAX_PRINTED else f"{text[:_MAX_PRINTED]}…"
