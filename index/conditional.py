"""Changes one small file of a collection so that of two who do it at once neither undoes the other's.

pyarrow cannot write on a condition, so object stores are spoken to through obstore here.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store
from pyarrow.fs import AzureFileSystem, GcsFileSystem, S3FileSystem

from index.errors import CollectionError
from index.storage import Storage

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import S3Config

Change = Callable[[bytes], bytes]


def update_file(storage: Storage, path: str, change: Change) -> None:
    """Replace a file's content by `change(content)`; of a missing file the content is empty.

    Nobody else's `update_file` of it comes in between. What `change` raises is passed on, with the file as it was; it
    may be called several times. CollectionError where the storage refuses.
    """
    if storage.is_local:
        _update_local(Path(storage.absolute(path)), change)
        return
    key = storage.absolute(path).partition("/")[2]
    try:
        store = _object_store(storage)
        while not _update_object(store, key, change):
            pass
    except (BaseError, FileNotFoundError) as error:
        raise CollectionError(
            f"{storage.absolute(path)} cannot be written on a condition ({str(error).splitlines()[0]}): expected "
            "credentials that may read and write it, and a store that knows If-Match and If-None-Match"
        ) from error


def _update_local(path: Path, change: Change) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as file:
        if os.fstat(file.fileno()).st_uid == os.geteuid():
            # Whoever may add files to the folder may write this one, which a umask would forbid.
            os.fchmod(file.fileno(), path.parent.stat().st_mode & 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # the system takes it back when a process dies
        except OSError as error:
            raise CollectionError(f"{path} cannot be locked ({error}): expected a file system with locks") from error
        content = file.read()
        changed = change(content)
        if changed != content:
            file.seek(0)
            file.write(changed)
            file.truncate()
            os.fsync(file.fileno())


def _update_object(store: S3Store | GCSStore | AzureStore, key: str, change: Change) -> bool:
    """False when another's update came in between."""
    mode: PutMode = "create"
    content = b""
    try:
        found = obstore.get(store, key)
    except FileNotFoundError:
        pass
    else:
        content = bytes(found.bytes())
        mode = {"e_tag": found.meta["e_tag"]}
        if version := found.meta["version"]:  # S3 without versioning has none, and obstore takes no None
            mode["version"] = version
    changed = change(content)
    if changed == content:
        return True
    try:
        obstore.put(store, key, changed, mode=mode)
    except (AlreadyExistsError, PreconditionError):
        return False
    return True


def _object_store(storage: Storage) -> S3Store | GCSStore | AzureStore:
    """The bucket of a storage. Credentials are those of its address, or what the cloud's own tools would find."""
    bucket = storage.root.partition("/")[0]
    address = urlsplit(storage.uri)
    if isinstance(storage.filesystem, AzureFileSystem):
        return AzureStore(bucket, account_name=address.username)
    if isinstance(storage.filesystem, GcsFileSystem):
        return GCSStore(bucket)
    if not isinstance(storage.filesystem, S3FileSystem):
        raise CollectionError(f"{storage.location}: expected a folder or an s3:// gs:// az:// address to write to")
    query = dict(parse_qsl(address.query))
    options: S3Config = {"region": storage.filesystem.region}
    if endpoint := query.get("endpoint_override"):
        options["endpoint"] = f"{query.get('scheme', 'https')}://{endpoint}"
    if address.username and address.password:
        options["access_key_id"], options["secret_access_key"] = unquote(address.username), unquote(address.password)
        return S3Store(bucket, config=options, client_options={"allow_http": True})
    try:
        provider = Boto3CredentialProvider()
    except ValueError as error:
        raise CollectionError(f"{storage.location}: no AWS credentials were found, which writing needs") from error
    return S3Store(bucket, config=options, client_options={"allow_http": True}, credential_provider=provider)
