"""Changes a small object of a bucket on condition that nobody else has changed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError

from index.errors import CollectionError
from index.storage.bucket import Bucket
from index.storage.objects import Store, first_line, get, object_store

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion

_TRIES: Final = 3
"""obstore retries a conditional write, except after a time-out, since the write may have been carried out."""


def update_object(bucket: Bucket, key: str, change: Callable[[bytes], bytes]) -> None:
    """`index.storage.compare_and_set.update_file` for an object store.

    If the answer to a write was lost, `change` gets the content after it, which may be its own result.
    """
    try:
        _update(object_store(bucket), key, change)
    except (BaseError, FileNotFoundError) as error:
        raise CollectionError(
            f"{bucket.name}/{key} cannot be written on a condition ({first_line(error)}): expected "
            "credentials that may read and write it, and a store that knows If-Match and If-None-Match"
        ) from error


def _update(store: Store, key: str, change: Callable[[bytes], bytes]) -> None:
    failed = 0
    while True:
        content, mode = _read(store, key)
        changed = change(content)
        if changed == content:
            return
        try:
            obstore.put(store, key, changed, mode=mode)
        except (AlreadyExistsError, PreconditionError):
            continue  # another update came in between, or an own one whose answer was lost
        except GenericError:
            failed += 1
            if failed == _TRIES:
                raise
            continue
        return


def _read(store: Store, key: str) -> tuple[bytes, PutMode]:
    """The content, and the condition that it is still unchanged."""
    try:
        content, meta = get(store, key)
    except FileNotFoundError:
        return b"", "create"
    mode: UpdateVersion = {"e_tag": meta["e_tag"]}
    if version := meta["version"]:  # S3 without versioning has none, and obstore takes no None
        mode["version"] = version
    return content, mode
