"""Files, local and in object stores, opened for reading; whatever goes wrong is a FetchError."""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from embedder.errors import FetchError
from embedder.fetch.policy import FetchPolicy
from embedder.fetch.uris import local_path, scheme_of, shown

_OBJECT = re.compile(r"[a-z0-9]+://(?:(?P<user>[^/@]*)@)?(?P<bucket>[^/@]+)/(?P<key>.+)", re.IGNORECASE | re.DOTALL)

# pyarrow tells most failures of object stores by their text alone.
_REPORT = re.compile(r"(?:AWS Error|Azure Error|google::cloud).*", re.DOTALL)
_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN|INVALID_CLIENT_TOKEN_ID"
    r"|HTTP status 40[13]|\b40[13] (?:Forbidden|Unauthorized)|Credential.*fail",
    re.IGNORECASE,
)
_MISSING = re.compile(r"NO_SUCH_BUCKET|NO_SUCH_KEY|Bucket '.*' not found|\b404 ", re.IGNORECASE)
_LATE = re.compile(r"curlCode: 28|timed? ?out", re.IGNORECASE)


class Stores:
    """Opens files by URI. Thread-safe; keeps one client per bucket.

    Credentials come from where each store's own tools look for them, as `docs/buckets.md` has it, which is what
    `index.storage.bucket` reads too. s3://anonymous@bucket/… reads without credentials, gs:// alike.
    """

    def __init__(self, policy: FetchPolicy) -> None:
        self._policy = policy
        self._filesystems: dict[tuple[str, str, str], pafs.FileSystem] = {}
        self._lock = Lock()

    @contextmanager
    def open(self, uri: str) -> Iterator[pa.NativeFile]:
        """The file, open for random access; read errors inside the block become FetchError too."""
        with _translated(uri):
            file = self._open_local(uri) if scheme_of(uri) == "file" else self._open_object(uri)
            with file:
                yield file

    def _open_local(self, uri: str) -> pa.NativeFile:
        path = local_path(uri)
        if not path:
            raise FetchError("bad_uri", "expected the path of a file, got an empty one")
        # Checked before opening: opening a FIFO waits for a writer, and opening a device can do anything.
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise FetchError("not_a_file", f"{shown(uri)}: expected a file, found a folder, a device or the like")
        return pa.OSFile(os.fsencode(path), "r")  # type: ignore[arg-type]  # bytes: any name

    def _open_object(self, uri: str) -> pa.NativeFile:
        found = _OBJECT.fullmatch(uri)
        if found is None:
            raise FetchError("bad_uri", f"{shown(uri)}: expected {scheme_of(uri)}://bucket/key")
        place = (scheme_of(uri), found["user"] or "", found["bucket"])
        with self._lock:
            if place not in self._filesystems:
                self._filesystems[place] = self._connect(uri, *place)
            filesystem = self._filesystems[place]
        return filesystem.open_input_file(f"{found['bucket']}/{found['key']}")

    def _connect(self, uri: str, scheme: str, user: str, bucket: str) -> pafs.FileSystem:
        if scheme != "az" and user not in ("", "anonymous"):
            raise FetchError(
                "forbidden_userinfo", f"{shown(uri)}: keys in URIs are not used; set them in the environment"
            )
        if scheme == "s3":
            return self._connect_s3(bucket, anonymous=user == "anonymous")
        if scheme == "gs":
            return self._connect_google(anonymous=user == "anonymous")
        return self._connect_azure(uri, user)

    def _connect_google(self, *, anonymous: bool) -> pafs.FileSystem:
        limit = timedelta(seconds=self._policy.timeout_s)
        scheme, _, host = os.environ.get("STORAGE_EMULATOR_HOST", "").rpartition("://")
        if not host:
            return pafs.GcsFileSystem(anonymous=anonymous, retry_time_limit=limit)
        return pafs.GcsFileSystem(
            anonymous=True, scheme=scheme or "http", endpoint_override=host, retry_time_limit=limit
        )

    def _connect_azure(self, uri: str, user: str) -> pafs.FileSystem:
        parts = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";")
        connection = {name: value for name, _, value in (part.partition("=") for part in parts)}
        scheme, _, host = connection.get("BlobEndpoint", "").rstrip("/").partition("://")
        # Beside a shared access signature, only the server's name has the account, or the path of an emulator.
        named = connection.get("AccountName") or host.partition("/")[2] or host.partition(".")[0]
        account = user or os.environ.get("AZURE_STORAGE_ACCOUNT") or named
        if not account:
            raise FetchError(
                "bad_uri",
                f"{shown(uri)}: whose container? Set AZURE_STORAGE_ACCOUNT or write az://account@container/…",
            )
        signature = os.environ.get("AZURE_STORAGE_SAS_TOKEN") or connection.get("SharedAccessSignature")
        key = None if signature else os.environ.get("AZURE_STORAGE_KEY") or connection.get("AccountKey")
        # pyarrow adds the account itself: before a host that begins with a dot, else (for an emulator) behind it.
        host = host.removesuffix(f"/{account}")
        host = f".{host.removeprefix(f'{account}.')}" if host.startswith(f"{account}.") else host
        server: dict[str, Any] = {}
        if host:
            server = {"blob_storage_authority": host, "dfs_storage_authority": host.replace(".blob.", ".dfs.", 1)}
            server |= {f"{kind}_storage_scheme": scheme for kind in ("blob", "dfs")}
        return pafs.AzureFileSystem(
            account, account_key=key, sas_token=(signature or "").removeprefix("?") or None, **server
        )

    def _connect_s3(self, bucket: str, *, anonymous: bool) -> pafs.FileSystem:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return pafs.S3FileSystem(
            anonymous=anonymous,
            endpoint_override=endpoint,
            region=region or (None if endpoint else pafs.resolve_s3_region(bucket)),
            connect_timeout=self._policy.connect_timeout_s,
            request_timeout=self._policy.timeout_s,
            # Amazon's "standard" one gives up early where many requests fail at once. This one's pauses double from
            # 50 ms: a store that asks to slow down means seconds.
            retry_strategy=pafs.AwsDefaultS3RetryStrategy(max_attempts=3 * self._policy.retries),
        )


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    try:
        yield
    except FetchError:
        raise
    except (OSError, ValueError) as error:  # pyarrow's own errors are among them
        raise _fetch_error(uri, error) from error


def _fetch_error(uri: str, error: OSError | ValueError) -> FetchError:
    text = str(error)
    # File names come before this part of the text, and may contain anything.
    report = found[0] if (found := _REPORT.search(text)) else text
    if isinstance(error, FileNotFoundError | NotADirectoryError) or _MISSING.search(report):
        return FetchError("not_found", f"{shown(uri)}: there is no such file; has it been moved or deleted?")
    if isinstance(error, PermissionError) or _REFUSED.search(report):
        return FetchError("permission_denied", f"{shown(uri)}: access refused; check permissions and credentials")
    if isinstance(error, ValueError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return FetchError("bad_uri", f"{shown(uri)}: {text}")
    if "Not a regular file" in text:
        return FetchError("not_a_file", f"{shown(uri)}: expected a file, found a folder or a bucket")
    if isinstance(error, TimeoutError) or _LATE.search(report):
        return FetchError("timeout", f"{shown(uri)}: the store did not answer in time ({text})", retryable=True)
    return FetchError("read_failed", f"{shown(uri)}: {text}", retryable=True)
