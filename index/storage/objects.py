"""Reads and atomically writes objects of a bucket, through obstore.

pyarrow completes a half-written upload when an exception is raised, does not retry every failed read, and has no
conditional writes.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError, GenericError
from obstore.store import AzureStore, GCSStore, S3Store

from index.errors import CollectionError, UnreachableError
from index.storage.bucket import ATTEMPTS, CONNECT_S, REQUEST_S, Bucket

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, RetryConfig

T = TypeVar("T")
Store = S3Store | GCSStore | AzureStore

_PART: Final = 8 << 20
_MAX_PARTS: Final = 10_000  # the limit of S3 and Google for one object; 78 GiB in parts of 8 MiB
_PARTS: Final = 3  # parts of an upload at once: at a megabyte a second they take most of each part's time limit
_MIN_READ: Final = 1 << 16  # bytes of a request: a Parquet file's footer, mostly
_BROKEN_OFF = re.compile(r"response body", re.IGNORECASE)


def _options() -> Any:
    """Time-outs and retries, the same for every store."""
    client: ClientConfig = {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "read_timeout": timedelta(seconds=REQUEST_S),
        "timeout": timedelta(seconds=2 * REQUEST_S),  # the part of a body read by then is not read again
    }
    retry: RetryConfig = {
        "max_retries": ATTEMPTS - 1,
        "retry_timeout": timedelta(seconds=6 * REQUEST_S),  # there are no retries after that, so it has to be longer
        "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=5), "base": 2},
    }
    return {"client_options": client, "retry_config": retry}


@cache
def object_store(bucket: Bucket) -> Store:
    """The client of a bucket, one per process, so that connections are reused."""
    if bucket.scheme == "gs":
        google: Any = {"skip_signature": True} if bucket.anonymous else {}
        if bucket.endpoint:
            # For an emulator: with only a base URL obstore asks the machine for a token before it writes.
            account = {"gcs_base_url": bucket.endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
            google["service_account_key"] = json.dumps({**account, "private_key_id": ""})
        return GCSStore(bucket.name, config=google, **_options())
    if bucket.scheme == "az":
        key, signature = bucket.azure_secrets()
        azure = {"account_name": bucket.user, "account_key": key, "sas_key": signature, "endpoint": bucket.endpoint}
        given: Any = {name: value for name, value in azure.items() if value}
        return AzureStore(bucket.name, config=given, **_options())
    return _s3(bucket)


def _s3(bucket: Bucket) -> S3Store:
    config: Any = {"region": region} if (region := bucket.region_found()) else {}
    if bucket.endpoint:
        config["endpoint"] = bucket.endpoint
    if bucket.anonymous:
        config["skip_signature"] = True
        return S3Store(bucket.name, config=config, **_options())
    if bucket.secret:
        # Passed as one provider: with keys in its configuration obstore also sends the environment's session token.
        own: Any = {"access_key_id": bucket.user, "secret_access_key": bucket.secret, "expires_at": None}
        return S3Store(bucket.name, config=config, **_options(), credential_provider=lambda: own)
    # obstore does not read the profiles of ~/.aws, unlike everything else here.
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        # boto3 renews a role's credentials ten minutes before they expire, so they are valid for that long.
        provider = Boto3CredentialProvider(ttl=timedelta(minutes=10))
    except ValueError as error:
        raise CollectionError(
            f"s3://{bucket.name}: no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "AWS_PROFILE or a role, on every machine"
        ) from error
    return S3Store(bucket.name, config=config, **_options(), credential_provider=provider)


def put(bucket: Bucket, key: str, content: bytes | Path) -> None:
    """Write an object, complete or not at all, replacing any of that name. CollectionError when refused."""
    try:
        store = object_store(bucket)
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        part = max(_PART, size // _MAX_PARTS + 1)
        repeated(lambda: obstore.put(store, key, content, chunk_size=part, max_concurrency=_PARTS))
    except (BaseError, FileNotFoundError) as error:
        raise CollectionError(
            f"{bucket.scheme}://{bucket.name}/{key} cannot be written ({first_line(error)}): expected a bucket that "
            "exists and credentials that may write to it"
        ) from error


def get(store: Store, key: str) -> tuple[bytes, ObjectMeta]:
    """A whole object as it was at one moment, and its metadata. FileNotFoundError when it is missing."""

    def once() -> tuple[bytes, ObjectMeta]:
        found = obstore.get(store, key)
        return bytes(found.bytes()), found.meta

    return repeated(once)


def read(bucket: Bucket, key: str) -> bytes:
    """`get`, for who does not know the store. FileNotFoundError when it is missing, UnreachableError else."""
    with _as_os_error(bucket, key):
        return get(object_store(bucket), key)[0]


def open_reader(bucket: Bucket, key: str) -> pa.NativeFile:
    """A seekable object to read. FileNotFoundError when it is missing, UnreachableError else.

    pyarrow's own reader fails on a store's error message that is longer than the read, such as a footer of 8 bytes.
    """
    store = object_store(bucket)
    with _as_os_error(bucket, key):
        size = repeated(lambda: obstore.head(store, key))["size"]
    return pa.PythonFile(io.BufferedReader(_Reader(bucket, key, size), _MIN_READ), "r")


class _Reader(io.RawIOBase):
    """Reads an object of `size` bytes by ranges."""

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        self._bucket, self._key, self._size, self._at = bucket, key, size, 0

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
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        store = object_store(self._bucket)
        with _as_os_error(self._bucket, self._key):
            found = repeated(lambda: obstore.get_range(store, self._key, start=self._at, length=length))
        buffer[: len(found)] = memoryview(found)  # fewer bytes if a shorter object has replaced it
        self._at += len(found)
        return len(found)


@contextmanager
def _as_os_error(bucket: Bucket, key: str) -> Iterator[None]:
    try:
        yield
    except BaseError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise UnreachableError(
            f"{bucket.scheme}://{bucket.name}/{key} cannot be read ({first_line(error)}): check the network and the "
            "credentials, and try again"
        ) from error


def repeated(operation: Callable[[], T]) -> T:
    """Try `operation` up to `ATTEMPTS` times: obstore retries requests itself, but not when an answer breaks off."""
    for attempt in range(1, ATTEMPTS):
        try:
            return operation()
        except GenericError as error:
            if not _BROKEN_OFF.search(str(error)):
                raise
            time.sleep(0.05 * 2**attempt)
    return operation()


def first_line(error: Exception) -> str:
    """obstore's message for an error, without the source-level details after it."""
    return str(error).splitlines()[0]
