"""Changes a small object of a bucket on condition that nobody else has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from index.clouds import Bucket
from index.errors import CollectionError
from index.object_store import Store, first_line, object_store, repeated

if TYPE_CHECKING:
    from obstore import PutMode


def update_object(bucket: Bucket, key: str, change: Callable[[bytes], bytes]) -> None:
    """`index.conditional.update_file`, of an object store."""
    try:
        store = object_store(bucket)
        while not _update(store, key, change):
            pass
    except (BaseError, FileNotFoundError) as error:
        raise CollectionError(
            f"{bucket.name}/{key} cannot be written on a condition ({first_line(error)}): expected "
            "credentials that may read and write it, and a store that knows If-Match and If-None-Match"
        ) from error


def _update(store: Store, key: str, change: Callable[[bytes], bytes]) -> bool:
    """False when another's update came in between, or one of this one's own whose answer was lost."""
    mode: PutMode = "create"
    content = b""
    try:
        found = repeated(lambda: obstore.get(store, key))
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
