"""Looks up names in a bucket, and lists it in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from itertools import accumulate, chain, dropwhile, islice, takewhile
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import InvalidPathError
from obstore.store import AzureStore

from index.errors import CollectionError, UnreachableError
from index.storage.bucket_address import ODD_PART, Bucket
from index.storage.clients import object_store, s3_client, with_retries
from index.storage.objects import as_os_error, delete

if TYPE_CHECKING:
    from obstore import ObjectMeta

    from index.storage.clients import Store

_PAGE: Final = 1000
_MAX_LISTINGS: Final = 32  # in parallel; each waits for its page
_LAST_CHARACTER: Final = "\U0010fffd"  # the greatest one that a name is likely to contain

Range = tuple[str, str]
"""The names after the first, up to and including the second ("": no limit), in the order of UTF-8 and of `str`."""


class KeyOrderError(CollectionError):
    """Keys are not listed in the order of their bytes."""


def find(bucket: Bucket, key: str) -> ObjectMeta | None:
    """The object; None for a folder, which is a prefix with objects below it, or the bucket.

    Raises FileNotFoundError if there is neither, and UnreachableError.
    """
    store = object_store(bucket)
    with as_os_error(bucket, key):
        with suppress(FileNotFoundError):
            if key:
                return with_retries(lambda: obstore.head(store, key))
        if not _first_objects(bucket, key, "") and key:
            raise FileNotFoundError(f"{bucket.address}/{key}")
        return None


def list_folder(bucket: Bucket, prefix: str) -> list[tuple[str, ObjectMeta | None]]:
    """Keys of the folders and objects of one level; None for folders. Raises UnreachableError.

    Those that obstore cannot name are left out on S3; on other stores they are a CollectionError.
    """
    with suppress(FileNotFoundError), as_os_error(bucket, prefix):
        try:
            objects, folders = _one_level(object_store(bucket), prefix)
        except InvalidPathError:
            if not bucket.scheme.any_key:
                raise
            objects, folders = _level_of_any_keys(bucket, prefix)
        return [*((folder, None) for folder in folders), *((found["path"], found) for found in objects)]
    return []


def list_objects(bucket: Bucket, prefix: str) -> Iterator[ObjectMeta]:
    """All objects below a prefix, in no order; none if the bucket does not exist. Raises UnreachableError, also if the
    bucket is gone before the end; KeyOrderError, on S3 only from the third page on; except on S3, CollectionError for a
    key that obstore cannot name.

    Objects whose keys end in a slash stand for folders. They are listed without it.
    """
    # Azure cannot start at a name: every page would be reached from the first one.
    by_folders = isinstance(object_store(bucket), AzureStore)
    listing = _by_folders if by_folders else _in_any_order if bucket.scheme.any_key else _by_ranges
    exists = False
    try:
        with as_os_error(bucket, prefix):
            for page in listing(bucket, prefix):
                exists = True
                yield from page
    except FileNotFoundError as error:
        if exists:  # the rest is not known, which is not the same as empty
            raise UnreachableError(
                f"{bucket.address}/{prefix} was listed in part, then there was no such bucket: try again"
            ) from error


def delete_folder(bucket: Bucket, prefix: str) -> None:
    """Remove all objects below a prefix; on Google and Azure, those that stand for folders stay. Raises
    UnreachableError.
    """
    # Empty ones last: those that stand for folders are missing under their paths, and interrupt the removal of others.
    objects = sorted(list_objects(bucket, prefix), key=lambda found: found["size"] == 0)
    if keys := [key for found in objects if not ODD_PART.search(key := found["path"])]:
        delete(bucket, keys)
    with as_os_error(bucket, prefix, "removed"):
        if bucket.scheme.any_key and _first_objects(bucket, prefix, ""):
            for found in chain.from_iterable(_pages_of_any_keys(bucket, prefix)):
                s3_client(bucket).delete_object(Bucket=bucket.name, Key=found["Key"])


def _in_any_order(bucket: Bucket, prefix: str) -> Iterator[Iterable[ObjectMeta]]:
    """Pages of objects by ranges; one long page if the first two show that the store lists keys in another order."""
    pages = _by_ranges(bucket, prefix)
    try:
        head = list(islice(pages, 1))
        yield ()  # the bucket exists
        head += islice(pages, 1)
    except KeyOrderError:
        yield _list_any_keys(bucket, prefix, "")
        return
    yield from head
    yield from pages


def _by_ranges(bucket: Bucket, prefix: str) -> Iterator[Sequence[ObjectMeta]]:
    """Pages of objects by ranges of names, split while threads are free: at most two more requests for a full page."""
    letters: set[str] = set()
    spare = 0
    with ThreadPoolExecutor(_MAX_LISTINGS) as pool:
        running = {pool.submit(_page, bucket, prefix, (prefix, f"{prefix}0" if prefix else ""))}  # "0" comes after "/"
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            page, rest = done.pop().result()
            running |= done
            yield page
            if rest is not None:
                letters.update(*(found["path"] for found in page))
                parts = _split(rest, letters, min(spare + 3, _MAX_LISTINGS - len(running)))
                spare += 3 - len(parts)
                running |= {pool.submit(_page, bucket, prefix, part) for part in parts}


def _page(bucket: Bucket, prefix: str, names: Range) -> tuple[list[ObjectMeta], Range | None]:
    """The first objects of a range, and the rest of the range.

    An object that stands for a folder has a slash at the end of its key, but not of its path: `a/` is listed after
    `a-b`, as `a`. So a range begins with the first path above its lower bound, and a page ends before its greatest one.
    """
    after, last = names
    found = _first_objects(bucket, prefix, after)
    paths = [entry["path"] for entry in found]
    if disorder := _disorder(paths, after):
        raise KeyOrderError(disorder)
    here = dropwhile(lambda entry: entry["path"] <= after, found)
    greatest = max(paths, default=after)
    if len(found) < _PAGE or (last and greatest > last):
        return list(takewhile(lambda entry: not last or entry["path"] <= last, here)), None
    page = list(takewhile(lambda entry: entry["path"] < greatest, here))
    return page, (max(entry["path"] for entry in page), last)


def _first_objects(bucket: Bucket, prefix: str, after: str) -> Sequence[ObjectMeta]:
    """The first objects after a name, in the store's order: up to a page, fewer only if there are no more."""
    store = object_store(bucket)
    with suppress(InvalidPathError, ValueError) if bucket.scheme.any_key else nullcontext():
        found: Sequence[ObjectMeta] = with_retries(
            lambda: next(iter(obstore.list(store, prefix or None, offset=after or None, chunk_size=_PAGE)), [])
        )
        # A key that begins with a slash has lost it, and is at another place.
        if not bucket.scheme.any_key or not _disorder([entry["path"] for entry in found], after):
            return found
    return list(islice(_list_any_keys(bucket, prefix, after), _PAGE))


def _disorder(paths: Sequence[str], after: str) -> str:
    """Which of the paths is not in the order of their bytes; empty if all are."""
    for before, path in zip(accumulate(paths, max, initial=after), paths, strict=False):
        if path < before and not before.startswith(path):
            return f"{path} is listed after {before}: expected keys in the order of their bytes"
    return ""


def _list_any_keys(bucket: Bucket, prefix: str, after: str) -> Iterator[ObjectMeta]:
    """Objects of S3 by boto3, which can name all keys, under the paths that obstore gives them."""
    for page in _pages_of_any_keys(bucket, prefix, **({"StartAfter": after} if after else {})):
        yield from map(_of_boto3, page)


def _level_of_any_keys(bucket: Bucket, prefix: str) -> tuple[list[ObjectMeta], list[str]]:
    """`_one_level` of S3 by boto3, without the folders and objects that obstore cannot name."""
    entries = list(chain.from_iterable(_pages_of_any_keys(bucket, prefix, Delimiter="/")))
    folders = [entry["Prefix"].removesuffix("/") for entry in entries if "Prefix" in entry]
    objects = [_of_boto3(entry) for entry in entries if "Key" in entry and not ODD_PART.search(entry["Key"])]
    return objects, [folder for folder in folders if not ODD_PART.search(folder)]


def _pages_of_any_keys(bucket: Bucket, prefix: str, **options: str) -> Iterator[list[Any]]:
    """The objects and folders of each page of boto3's listing."""
    pages = s3_client(bucket).get_paginator("list_objects_v2")
    for page in pages.paginate(Bucket=bucket.name, Prefix=f"{prefix}/" if prefix else "", **options):
        yield [*page.get("Contents", ()), *page.get("CommonPrefixes", ())]


def _of_boto3(found: Any) -> ObjectMeta:
    path, size, modified = found["Key"].removesuffix("/"), found["Size"], found["LastModified"]
    return {"path": path, "size": size, "last_modified": modified, "e_tag": found.get("ETag"), "version": None}


def _split(names: Range, letters: Set[str], parts: int) -> list[Range]:
    """A range as at most `parts` ranges: split halfway between the prefix that its bounds share and its whole lower
    bound, and before letters that occur in names so far. A bound that ended in a slash or a dot would not be a path.
    """
    after, last = names
    differing = (at for at, (one, other) in enumerate(zip(after, last, strict=False)) if one != other)
    same = next(differing, min(len(after), len(last)))
    half = (same + len(after)) // 2
    middle = after[:half] + _LAST_CHARACTER
    chosen = {middle} if parts > 2 and half > same and middle > after else set()
    parts -= len(chosen)
    cuts: list[str] = []
    for level in range(same, len(after) + 1):
        if len(cuts) >= parts:
            break
        further = [after[:level] + letter for letter in letters - set("/.") if letter > after[level : level + 1]]
        cuts += [cut for cut in further if not last or cut < last]
    if cuts:
        cuts.sort()
        chosen |= {cuts[number * len(cuts) // parts] for number in range(1, parts)}
    bounds = sorted(chosen)
    return list(zip([after, *bounds], [*bounds, last], strict=True))


def _by_folders(bucket: Bucket, prefix: str) -> Iterator[Sequence[ObjectMeta]]:
    """Pages of objects by folders of one level, or of two if the first has few. The first page may be empty."""
    store = object_store(bucket)
    first = _list_below(store, prefix, pages=1)
    if len(first) < _PAGE:
        yield first
        return
    yield []  # the bucket exists
    with ThreadPoolExecutor(_MAX_LISTINGS) as pool:
        objects, folders = _one_level(store, prefix)
        if len(folders) < _MAX_LISTINGS:
            below = list(pool.map(lambda folder: _one_level(store, folder), folders))
            objects += [found for here, _ in below for found in here]
            folders = [folder for _, deeper in below for folder in deeper]
        yield objects
        yield from pool.map(lambda folder: _list_below(store, folder), folders)


def _one_level(store: Store, prefix: str) -> tuple[list[ObjectMeta], list[str]]:
    found = with_retries(lambda: obstore.list_with_delimiter(store, prefix or None))
    return list(found["objects"]), list(found["common_prefixes"])


def _list_below(store: Store, prefix: str, pages: int | None = None) -> list[ObjectMeta]:
    """All objects below a prefix, or only the first `pages` of them."""
    return with_retries(
        lambda: list(chain.from_iterable(islice(obstore.list(store, prefix or None, chunk_size=_PAGE), pages)))
    )
