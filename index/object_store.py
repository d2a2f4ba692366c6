"""Reads a bucket and writes to it, all or nothing, through obstore.

pyarrow completes an upload of which the half was written when something was raised, does not repeat every read that
failed, and has no conditional writes.
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

from index.clouds import ATTEMPTS, CONNECT_S, REQUEST_S, Bucket
from index.errors import CollectionError

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, RetryConfig

T = TypeVar("T")
Store = S3Store | GCSStore | AzureStore

_PART: Final = 8 << 20
_MOST_PARTS: Final = 10_000  # S3's and Google's bound for one object, which 8 MiB each would reach at 78 GiB
_PARTS: Final = 3  # of an upload at once: at a megabyte a second they take most of the time that there is for each
_LEAST: Final = 1 << 16  # bytes of a request: a Parquet file's footer, mostly
_BROKEN_OFF = re.compile(r"response body", re.IGNORECASE)


def _options() -> Any:
    """Time-outs and repetitions, which are the same for every store."""
    client: ClientConfig = {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "read_timeout": timedelta(seconds=REQUEST_S),
        "timeout": timedelta(seconds=2 * REQUEST_S),  # what is read of a body by then is not read again
    }
    retry: RetryConfig = {
        "max_retries": ATTEMPTS - 1,
        "retry_timeout": timedelta(seconds=6 * REQUEST_S),  # nothing is repeated after that, so it has to be longer
        "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=5), "base": 2},
    }
    return {"client_options": client, "retry_config": retry}


@cache
def object_store(bucket: Bucket) -> Store:
    """One client for each bucket in this process, so that connections are kept."""
    if bucket.scheme == "gs":
        google: Any = {"skip_signature": True} if bucket.anonymous else {}
        if bucket.endpoint:
            # An emulator's: with a base URL alone obstore asks the machine for a token before it writes.
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
        # Handed over whole: beside keys in its configuration obstore sends the environment's session token along.
        own: Any = {"access_key_id": bucket.user, "secret_access_key": bucket.secret, "expires_at": None}
        return S3Store(bucket.name, config=config, **_options(), credential_provider=lambda: own)
    # obstore by itself does not read the profiles of ~/.aws, which all else here does.
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        # A role's are renewed by boto3 ten minutes before their end, so that they are good for so long.
        provider = Boto3CredentialProvider(ttl=timedelta(minutes=10))
    except ValueError as error:
        raise CollectionError(
            f"s3://{bucket.name}: no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "AWS_PROFILE or a role, on every machine"
        ) from error
    return S3Store(bucket.name, config=config, **_options(), credential_provider=provider)


def put(bucket: Bucket, key: str, content: bytes | Path) -> None:
    """Put an object under its name, complete or not at all, over whatever was there. CollectionError when refused."""
    try:
        store = object_store(bucket)
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        part = max(_PART, size // _MOST_PARTS + 1)
        repeated(lambda: obstore.put(store, key, content, chunk_size=part, max_concurrency=_PARTS))
    except (BaseError, FileNotFoundError) as error:
        raise CollectionError(
            f"{bucket.scheme}://{bucket.name}/{key} cannot be written ({first_line(error)}): expected a bucket that "
            "exists and credentials that may write to it"
        ) from error


def get(store: Store, key: str) -> tuple[bytes, ObjectMeta]:
    """A whole object as it was at one moment, and what the store says of it. FileNotFoundError when it is missing."""

    def once() -> tuple[bytes, ObjectMeta]:
        found = obstore.get(store, key)
        return bytes(found.bytes()), found.meta

    return repeated(once)


def read(bucket: Bucket, key: str) -> bytes:
    """`get`, for who does not know the store. FileNotFoundError when it is missing, OSError when it cannot be read."""
    with _as_os_error(bucket, key):
        return get(object_store(bucket), key)[0]


def open_reader(bucket: Bucket, key: str) -> pa.NativeFile:
    """A seekable object to read. FileNotFoundError when it is missing, OSError when it cannot be read.

    pyarrow's own gives up at an error of the store that is longer than what is to be read, such as a footer of 8 bytes.
    """
    store = object_store(bucket)
    with _as_os_error(bucket, key):
        size = repeated(lambda: obstore.head(store, key))["size"]
    return pa.PythonFile(io.BufferedReader(_Reader(bucket, key, size), _LEAST), "r")


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
        buffer[: len(found)] = memoryview(found)  # fewer where a shorter object has taken its name
        self._at += len(found)
        return len(found)


@contextmanager
def _as_os_error(bucket: Bucket, key: str) -> Iterator[None]:
    try:
        yield
    except BaseError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise OSError(f"{bucket.scheme}://{bucket.name}/{key} cannot be read ({first_line(error)})") from error


def repeated(operation: Callable[[], T]) -> T:
    """`operation`, up to `ATTEMPTS` times: obstore repeats requests by itself, but not where an answer breaks off."""
    for attempt in range(1, ATTEMPTS):
        try:
            return operation()
        except GenericError as error:
            if not _BROKEN_OFF.search(str(error)):
                raise
            time.sleep(0.05 * 2**attempt)
    return operation()


def first_line(error: Exception) -> str:
    """What obstore says of an error, without its source code's view of it."""
    return str(error).splitlines()[0]
