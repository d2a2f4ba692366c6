"""Reads, writes and updates objects of a bucket, with as few requests as possible."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import obstore
import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, InvalidPathError, PreconditionError

from index.errors import CollectionError, UnreachableError, UnsafeFileError
from index.storage.bucket_address import MAX_AT_ONCE, Bucket, without_secrets
from index.storage.clients import object_store, with_retries

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode, UpdateVersion

    from index.storage.clients import Store

_PART_BYTES: Final = 8 << 20
_REQUEST_BYTES: Final = MAX_AT_ONCE // 4
_MAX_PARTS: Final = 10_000  # the limit of S3 and Google for one object; 78 GiB in parts of 8 MiB
_PARALLEL_PARTS: Final = 3  # of an upload; at a megabyte a second, they take most of each part's time limit
_MAX_WRITES: Final = 3
"""Attempts of a conditional write. obstore does not retry it after a timeout, because it may have succeeded."""
_BATCH: Final = 256  # the limit of Azure for one request
_NO_BUCKET: Final = re.compile(r"[>(](?:NoSuchBucket|ContainerNotFound)[<)]")
"""The code in a store's answer. A status of 404 may also be that of a token service."""
_CHECK: Final = "check the address, the network, the region and the credentials"
_ANSWER: Final = re.compile(r"<.*<Code>(.*?)</Code>.*?<Message>(.*?)</Message>.*", re.DOTALL)


def put(bucket: Bucket, key: str, content: bytes | Path) -> None:
    """Write an object, complete or not at all, replacing any existing one. CollectionError if refused."""
    try:
        store = object_store(bucket)
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        part = max(_PART_BYTES, size // _MAX_PARTS + 1)
        with_retries(lambda: obstore.put(store, key, content, chunk_size=part, max_concurrency=_PARALLEL_PARTS))
    except (BaseError, FileNotFoundError) as error:
        raise _write_error(bucket, key, error) from error


def update_object(bucket: Bucket, key: str, change: Callable[[bytes], bytes]) -> None:
    """`Storage.update` for a bucket. If the answer to a write is lost, `change` may be called with its own result."""
    try:
        _update(object_store(bucket), key, change)
    except (BaseError, FileNotFoundError) as error:
        raise _write_error(bucket, key, error, ", and that the store supports If-Match and If-None-Match") from error


def _write_error(bucket: Bucket, key: str, error: Exception, condition: str = "") -> CollectionError:
    if _NO_BUCKET.search(str(error)):
        return CollectionError(f"{bucket.address} does not exist: create it, or correct the name")
    return CollectionError(f"{bucket.address}/{key} cannot be written ({reason(error)}): {_CHECK}{condition}")


def _update(store: Store, key: str, change: Callable[[bytes], bytes]) -> None:
    failed = 0
    while True:
        content, mode = _content_and_condition(store, key)
        changed = change(content)
        if changed == content:
            return
        try:
            obstore.put(store, key, changed, mode=mode)
            return
        except (AlreadyExistsError, PreconditionError):
            pass  # another update came in between, or the answer to our own was lost
        except GenericError:
            failed += 1
            if failed == _MAX_WRITES:
                raise


def _content_and_condition(store: Store, key: str) -> tuple[bytes, PutMode]:
    """The content, and the condition for a write that it is unchanged."""

    def read_once() -> tuple[bytes, ObjectMeta]:
        found = obstore.get(store, key)
        return bytes(found.bytes()), found.meta

    try:
        content, meta = with_retries(read_once)
    except FileNotFoundError:
        return b"", "create"
    mode: UpdateVersion = {"e_tag": meta["e_tag"]}
    if version := meta["version"]:  # None on S3 without versioning, which obstore does not accept
        mode["version"] = version
    return content, mode


def read(bucket: Bucket, key: str, max_bytes: int) -> bytes:
    """An object as it was at one moment. FileNotFoundError if it is missing, UnsafeFileError if it is larger than
    `max_bytes`, otherwise UnreachableError.
    """

    def check_size(size: int) -> None:
        if size > max_bytes:
            problem = f"{bucket.address}/{key} has {size:,} bytes"
            raise UnsafeFileError(f"{problem}, more than the {max_bytes:,} that such a file has at most: remove it")

    return read_part(bucket, key, None, check_size)


def read_part(bucket: Bucket, key: str, span: tuple[int, int] | None, check_size: Callable[[int], None]) -> bytes:
    """An object, or its bytes in `span`, in one request. `check_size` may raise before they are read."""
    store = object_store(bucket)
    options: GetOptions = {"range": span} if span else {}

    def once() -> bytes:
        found = obstore.get(store, key, options=options)
        check_size(found.meta["size"])
        return bytes(found.bytes())

    with as_os_error(bucket, key):
        try:
            return with_retries(once)
        except BaseError as error:
            if span and "416" in reason(error):  # the object may end before the span begins
                check_size(_head(store, key)["size"])
            raise


def _head(store: Store, key: str) -> ObjectMeta:
    return with_retries(lambda: obstore.head(store, key))


def delete(bucket: Bucket, keys: Sequence[str]) -> None:
    """Remove objects, if they are there."""
    store = object_store(bucket)
    step = len(keys) if bucket.scheme.bulk_delete else _BATCH
    with as_os_error(bucket, keys[0], "removed"):
        for batch in (keys[start : start + step] for start in range(0, len(keys), step)):
            try:
                with_retries(partial(obstore.delete, store, batch))
            except FileNotFoundError:  # S3: of the bucket; Google and Azure stop at the first object that is missing
                if not bucket.scheme.bulk_delete and len(batch) > 1:
                    for key in batch:
                        delete(bucket, [key])


def open_reader(bucket: Bucket, key: str, min_read: int) -> pa.NativeFile:
    """A seekable reader, which requests at least `min_read` bytes. Raises the errors of `read`.

    pyarrow's own reader fails if a store's error message is longer than the read, such as a footer of 8 bytes.
    """
    with as_os_error(bucket, key):
        reader = _Reader(bucket, key, _head(object_store(bucket), key))
    return pa.PythonFile(io.BufferedReader(reader, min_read), "r")


class _Reader(io.RawIOBase):
    """Reads ranges of an object. UnreachableError if another one has replaced it since `meta`, by its ETag."""

    def __init__(self, bucket: Bucket, key: str, meta: ObjectMeta) -> None:
        self._bucket, self._key, self._size, self._at = bucket, key, meta["size"], 0
        self._condition: GetOptions = {"if_match": meta["e_tag"]} if meta["e_tag"] else {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at, MAX_AT_ONCE)
        if length <= 0:
            return 0
        store, at = object_store(self._bucket), self._at

        def read_one(start: int) -> int:
            end = min(start + _REQUEST_BYTES, length)
            options: GetOptions = {**self._condition, "range": (at + start, at + end)}
            found = with_retries(lambda: obstore.get(store, self._key, options=options).bytes())
            buffer[start : start + len(found)] = memoryview(found)
            return len(found)

        starts = range(0, length, _REQUEST_BYTES)
        with as_os_error(self._bucket, self._key), ThreadPoolExecutor(len(starts)) as pool:
            # Not obstore.get_ranges, which makes one request of ranges that touch.
            count = sum(pool.map(read_one, starts) if len(starts) > 1 else map(read_one, starts))
        self._at += count  # less than `length` if a shorter object has replaced this one, and has no ETag
        return count


@contextmanager
def as_os_error(bucket: Bucket, key: str, action: str = "read") -> Iterator[None]:
    """Raises UnreachableError for errors of obstore and boto3, FileNotFoundError for a missing object and for the
    missing bucket of a listing, and CollectionError for a key that obstore cannot name.
    """
    try:
        yield
    except FileNotFoundError as error:  # obstore's message has its whole request in twenty lines
        raise FileNotFoundError(f"{bucket.address}/{key} does not exist") from error
    except InvalidPathError as error:
        raise CollectionError(
            f"{bucket.address} has a key that cannot be read ({reason(error)}): rename or move it"
        ) from error
    except PreconditionError as error:
        raise UnreachableError(f"{bucket.address}/{key} has changed while it was read: try again") from error
    except (BaseError, BotoCoreError, ClientError) as error:
        if _NO_BUCKET.search(str(error)):  # in a listing, where obstore does not say so by the type
            raise FileNotFoundError(bucket.address) from error
        raise UnreachableError(
            f"{bucket.address}/{key} cannot be {action} ({reason(error)}): {_CHECK}, then try again"
        ) from error


def reason(error: Exception) -> str:
    """The first line of obstore's error message, with the code and the message of a store's answer in XML."""
    return without_secrets(_ANSWER.sub(r"\1: \2", str(error)).splitlines()[0])
