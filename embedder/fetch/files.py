"""Reads local files and objects in buckets; all errors become FetchError."""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from embedder.errors import FetchError
from embedder.fetch.uris import FRAME_MARK, ByteRange, fetch_error, local_path, scheme_of

_OBJECT = re.compile(r"[a-z0-9]+://(?P<bucket>(?:(?P<user>[^/@]*)@)?[^/@]+)/(?P<key>.+)", re.IGNORECASE | re.DOTALL)


class Buckets(Protocol):
    """Reads objects. `bucket` is an address such as "s3://name", "gs://anonymous@name" or "az://account@container".

    Raises FileNotFoundError, PermissionError, TimeoutError or another OSError, and ValueError for a malformed address.
    """

    @property
    def schemes(self) -> frozenset[str]: ...

    def read(self, bucket: str, key: str, span: tuple[int, int] | None, check_size: Callable[[int], None]) -> bytes:
        """An object, or its bytes in `span` (start and end, the end excluded).

        `check_size` gets the size of the whole object before its bytes are read; its exceptions are passed on.
        """
        ...

    def open(self, bucket: str, key: str) -> pa.NativeFile:
        """An object, open for random access."""
        ...


class Files:
    """Reads files by URI, objects through `buckets`. Thread-safe."""

    def __init__(self, buckets: Buckets | None) -> None:
        self._buckets = buckets

    def read(self, uri: str, part: ByteRange | None, max_bytes: int) -> bytes:
        """A file, or a part of it; at most `max_bytes`."""
        first, end = (part.first, part.last + 1) if part else (0, None)

        def check_size(size: int) -> None:
            if end is not None and end > size:
                raise fetch_error(uri, "out_of_range", f"the file ends at {size:,} bytes; has it been rewritten?")
            require_bytes(uri, (size if end is None else end) - first, max_bytes)

        if scheme_of(uri) != "file" and self._buckets and end != first:  # a request cannot ask for 0 bytes
            with _as_fetch_errors(uri):
                return self._buckets.read(*_bucket_and_key(uri), None if end is None else (first, end), check_size)
        with self.open(uri) as file:
            size = int(file.size())
            check_size(size)
            length = (size if end is None else end) - first
            file.seek(first)
            data = bytes(file.read(length))
        if len(data) != length:
            raise fetch_error(uri, "read_failed", "the file shrank while it was read", retryable=True)
        return data

    @contextmanager
    def open(self, uri: str) -> Iterator[pa.NativeFile]:
        """The file, open for random access; read errors inside the block become FetchError too."""
        with _as_fetch_errors(uri):
            buckets = None if scheme_of(uri) == "file" else self._buckets
            with buckets.open(*_bucket_and_key(uri)) if buckets else _open_local(uri) as file:
                yield file


def require_bytes(uri: str, size: int, limit: int) -> None:
    """Raises FetchError if a picture has more bytes than allowed."""
    if size > limit:
        raise fetch_error(uri, "too_many_bytes", f"{size:,} bytes, at most {limit:,} are allowed")


def _open_local(uri: str) -> pa.NativeFile:
    path = local_path(uri)
    if not path:
        raise FetchError("bad_uri", "expected the path of a file, got an empty one")
    # Checked before opening: opening a FIFO waits for a writer, and opening a device may have any effect.
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise fetch_error(uri, "not_a_file", "expected a file, found a folder, a device or the like")
    return pa.OSFile(os.fsencode(path), "r")  # type: ignore[arg-type]  # bytes, because names need not be Unicode


def _bucket_and_key(uri: str) -> tuple[str, str]:
    """The bucket's address, and the key."""
    parts, scheme = _OBJECT.fullmatch(uri), scheme_of(uri)
    if parts is None:
        raise fetch_error(uri, "bad_uri", f"expected {scheme}://bucket/key")
    if ":" in (parts["user"] or ""):
        raise fetch_error(uri, "forbidden_userinfo", "keys in URIs are not used; set them in the environment")
    if parts["key"].endswith("/"):
        raise fetch_error(uri, "not_a_file", "expected a file, found a folder")
    return f"{scheme}://{parts['bucket']}", parts["key"]


@contextmanager
def _as_fetch_errors(uri: str) -> Iterator[None]:
    """All errors derive from OSError and ValueError, pyarrow's too."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise fetch_error(uri, "not_found", f"there is no such file; {_likely_mistake(uri)}") from error
    except PermissionError as error:
        message = "access refused; check permissions and credentials"
        raise fetch_error(uri, "permission_denied", message) from error
    except TimeoutError as error:
        message = f"the store did not answer in time ({error})"
        raise fetch_error(uri, "timeout", message, retryable=True) from error
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise fetch_error(uri, "bad_uri", str(error)) from error
        raise fetch_error(uri, "read_failed", str(error), retryable=True) from error


_HOST = re.compile(r"(?:localhost|[0-9]+(?:\.[0-9]+){3}|(?:[a-z0-9-]+\.)+[a-z]{2,})(?::[0-9]+)?", re.IGNORECASE)
_SCHEME_OR_DRIVE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def _likely_mistake(uri: str) -> str:
    """What is probably wrong with the address of a file that does not exist."""
    if "\\" in uri:
        return "write / between folders instead of the backslashes of Windows, and give paths that this machine has"
    if scheme_of(uri) == "file":
        path = local_path(uri)
        video, mark, _ = path.rpartition(FRAME_MARK)
        if mark and Path(video).is_file():
            return f"name a frame of {Path(video).name!r} as {FRAME_MARK}SECONDS, such as {FRAME_MARK}12.5"
        existing = next((str(parent) for parent in Path(path).parents if parent.is_dir()), "")
        first, _, rest = path.removeprefix(existing).lstrip("/").partition("/")
        if rest and (_HOST.fullmatch(first) or path.startswith("//")):
            return f"if {first!r} is a web server, begin the address with https://"
        if _SCHEME_OR_DRIVE.match(first):
            return f"is {first!r} a scheme, as in https://, or a drive of another machine?"
    return "has it been moved or deleted?"
