"""URIs of pictures: the scheme, the part of a file that a fragment names, and how to show them."""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from embedder.errors import FetchError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FRAGMENT = re.compile(
    r"(?P<file>.+)#(?:bytes=(?P<first>[0-9]{1,18})-(?P<last>[0-9]{1,18})|row=(?P<row>[0-9]{1,18})&column=(?P<column>.+)"
    r"|t=(?P<time>[0-9]{1,9}(?:\.[0-9]{1,6})?))",
    re.DOTALL,
)
_USERINFO = re.compile(r"(?<=://)[^/?#\\]*@")
_SHOWN = 300


@dataclass(frozen=True)
class ByteRange:
    """From `first` to `last`, both included; `last` is `first` − 1 when there are none."""

    first: int
    last: int


@dataclass(frozen=True)
class Cell:
    """One cell of a table, rows counted from 0."""

    row: int
    column: str


@dataclass(frozen=True)
class FrameAt:
    """The first frame of a video from this time on, in seconds, as in W3C's media fragments."""

    time: float


def scheme_of(uri: str) -> str:
    """The scheme of a URI, in lower case; "file" for a plain path."""
    found = _SCHEME.match(uri)
    return found[1].lower() if found else "file"


def split_fragment(uri: str) -> tuple[str, ByteRange | Cell | FrameAt | None]:
    """The file's URI, and the part of the file that the fragment names. Any other "#" belongs to the file's name."""
    found = _FRAGMENT.fullmatch(uri)
    if found is None:
        return uri, None
    if found["row"] is not None:
        return found["file"], Cell(int(found["row"]), found["column"])
    if found["time"] is not None:
        return found["file"], FrameAt(float(found["time"]))
    part = ByteRange(int(found["first"]), int(found["last"]))
    if part.last < part.first - 1:
        raise FetchError("bad_uri", f"{shown(uri)}: a range of bytes must not end before it begins")
    return found["file"], part


def local_path(uri: str) -> str:
    """The path of a plain path or of a file:// URI, in which %20 and the like are undone."""
    found = _SCHEME.match(uri)
    if found is None:
        return uri
    host, slash, rest = uri[found.end() :].partition("/")
    if host not in ("", "localhost") or not slash:
        raise FetchError("bad_uri", f"{shown(uri)}: expected file:///path or a plain path")
    return unquote("/" + rest, errors="surrogateescape")


def shown(uri: str) -> str:
    """A URI for messages: on one line, not too long, without user name and password."""
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in _USERINFO.sub("", uri))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
