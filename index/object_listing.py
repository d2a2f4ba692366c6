"""Lists a bucket through obstore, side by side; pyarrow lists no ETags."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import BaseError, InvalidPathError
from obstore.store import AzureStore

from index.clouds import Bucket
from index.errors import CollectionError
from index.object_store import Store, first_line, object_store, repeated

if TYPE_CHECKING:
    from obstore import ObjectMeta

_PAGE: Final = 1000
_LISTINGS: Final = 32  # at once: each waits for one page after the other
_MANY_FOLDERS: Final = 1000


class OddKeyError(CollectionError):
    """A key with an empty segment, or one that is a dot or two."""


def list_objects(bucket: Bucket, prefix: str) -> Iterator[ObjectMeta]:
    """All objects below a prefix, in no order.

    OddKeyError for a key that obstore knows no path of, CollectionError where they may not be listed.
    """
    try:
        yield from _listed(object_store(bucket), prefix)
    except InvalidPathError as error:
        raise OddKeyError(first_line(error)) from error
    except (BaseError, FileNotFoundError) as error:
        raise CollectionError(first_line(error)) from error


def _listed(store: Store, prefix: str) -> Iterator[ObjectMeta]:
    first: list[ObjectMeta] = repeated(
        lambda: list(next(iter(obstore.list(store, prefix or None, chunk_size=_PAGE)), []))
    )
    level = prefix.count("/") + 1 if prefix else 0
    if len(first) < _PAGE or all(found["path"].count("/") == level for found in first):
        yield from first
        if len(first) >= _PAGE:
            yield from _between(store, prefix, first[-1]["path"], "")
        return
    with ThreadPoolExecutor(_LISTINGS) as pool:
        objects, folders = _one_level(store, prefix)
        if len(folders) < _LISTINGS:
            below = list(pool.map(lambda folder: _one_level(store, folder), folders))
            objects += [found for here, _ in below for found in here]
            folders = [folder for _, deeper in below for folder in deeper]
        if len(folders) > _MANY_FOLDERS and not isinstance(store, AzureStore):  # which cannot begin at a name
            parts = pool.map(lambda bounds: _between(store, prefix, *bounds), _ranges(folders))
        else:
            yield from objects
            parts = pool.map(lambda folder: _between(store, folder, "", ""), folders)
        for part in parts:
            yield from part


def _ranges(folders: list[str]) -> list[tuple[str, str]]:
    """Names to list between, with about as many folders each: a request for each folder would fetch few objects."""
    bounds = sorted(folders)[:: -(-len(folders) // _LISTINGS)][1:]
    return list(zip(["", *bounds], [*bounds, ""], strict=True))


def _one_level(store: Store, prefix: str) -> tuple[list[ObjectMeta], list[str]]:
    found = repeated(lambda: obstore.list_with_delimiter(store, prefix or None))
    return list(found["objects"]), list(found["common_prefixes"])


def _between(store: Store, prefix: str, after: str, last: str) -> list[ObjectMeta]:
    """Objects below a prefix in the order of their keys, from behind one name to another; "": from the first, to the
    last. A listing that breaks off is gone on with.
    """
    found: list[ObjectMeta] = []

    def go_on() -> None:
        offset = found[-1]["path"] if found else after
        for page in obstore.list(store, prefix or None, offset=offset or None, chunk_size=_PAGE):
            # What stands for a folder has its slash in the key and not in the path: as a bound it would come twice.
            found.extend(entry for entry in page if after < entry["path"] and (not last or entry["path"] <= last))
            if last and page and page[-1]["path"] > last:
                return

    repeated(go_on)
    return found
