"""Changes a small object of a bucket on condition that nobody else has: pyarrow cannot, so through obstore."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store
from pyarrow.fs import AzureFileSystem, GcsFileSystem, S3FileSystem

from index.errors import CollectionError
from index.storage import Storage

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import S3Config


def update_object(storage: Storage, path: str, change: Callable[[bytes], bytes]) -> None:
    """`index.conditional.update_file`, of an object store."""
    key = storage.absolute(path).partition("/")[2]
    try:
        store = object_store(storage)
        while not _update(store, key, change):
            pass
    except (BaseError, FileNotFoundError) as error:
        raise CollectionError(
            f"{storage.absolute(path)} cannot be written on a condition ({str(error).splitlines()[0]}): expected "
            "credentials that may read and write it, and a store that knows If-Match and If-None-Match"
        ) from error


def _update(store: S3Store | GCSStore | AzureStore, key: str, change: Callable[[bytes], bytes]) -> bool:
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


def object_store(storage: Storage) -> S3Store | GCSStore | AzureStore:
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
    # obstore by itself does not read the profiles of ~/.aws, which all else here does.
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        provider = Boto3CredentialProvider()
    except ValueError as error:
        raise CollectionError(f"{storage.location}: no AWS credentials were found, which writing needs") from error
    return S3Store(bucket, config=options, client_options={"allow_http": True}, credential_provider=provider)
