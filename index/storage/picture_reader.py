"""Reads pictures from buckets, each in one request."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from index.errors import CollectionError, UnreachableError
from index.storage.bucket_address import SCHEMES, Bucket
from index.storage.storage import MIN_READ

_TIMED_OUT = re.compile(r"\bTimedOut\b|kind: Timeout")


@dataclass(frozen=True, kw_only=True)
class PictureReader:
    """Implements `embedder.fetch.files.Buckets`. `request_s` and `attempts` are those of `Bucket`."""

    schemes: ClassVar = frozenset(SCHEMES)
    request_s: float = Bucket.request_s
    attempts: int = Bucket.attempts

    def read(self, bucket: str, key: str, span: tuple[int, int] | None, check_size: Callable[[int], None]) -> bytes:
        """See `index.storage.objects.read_part`."""
        from index.storage.objects import read_part  # imports obstore, which is slow and not needed for folders

        with _as_builtin_errors():
            return read_part(self._bucket(bucket), key, span, check_size)

    def open(self, bucket: str, key: str) -> pa.NativeFile:
        """See `index.storage.objects.open_reader`."""
        from index.storage.objects import open_reader

        with _as_builtin_errors():
            return open_reader(self._bucket(bucket), key, MIN_READ)

    def _bucket(self, address: str) -> Bucket:
        try:
            return replace(Bucket.of(address)[0], request_s=self.request_s, attempts=self.attempts)
        except CollectionError as error:
            raise ValueError(str(error)) from error


@contextmanager
def _as_builtin_errors() -> Iterator[None]:
    """Raises PermissionError or TimeoutError for this package's errors where they fit."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except UnreachableError as error:
        if isinstance(error.__cause__, PermissionDeniedError | UnauthenticatedError):
            raise PermissionError(str(error)) from error
        if _TIMED_OUT.search(str(error.__cause__)):
            raise TimeoutError(str(error)) from error
        raise
    except CollectionError as error:  # no credentials
        raise PermissionError(str(error)) from error
