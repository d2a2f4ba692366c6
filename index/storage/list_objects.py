"""Lists a bucket in parallel, through obstore because pyarrow lists no ETags."""

from __future__ import annotations

from collections.abc import Iterator, Set
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import accumulate, chain, dropwhile, islice, takewhile
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import BaseError, InvalidPathError
from obstore.store import AzureStore

from index.errors import CollectionError
from index.storage.bucket_address import Bucket
from index.storage.clients import object_store
from index.storage.objects import first_line
from index.storage.retries import with_retries

if TYPE_CHECKING:
    from obstore import ObjectMeta

    from index.storage.clients import Store

_PAGE: Final = 1000
_MAX_LISTINGS: Final = 32  # in parallel; each waits for its page
_LAST_CHARACTER: Final = "\U0010fffd"  # the greatest one that a name is likely to contain

Range = tuple[str, str]
"""The names after the first, up to and including the second ("": no limit), in the order of UTF-8 and of `str`."""


class OddKeyError(CollectionError):
    """A key has a segment that is empty, "." or "..", or the keys are not listed in the order of their bytes."""


def list_objects(bucket: Bucket, prefix: str) -> Iterator[ObjectMeta]:
    """All objects below a prefix, in no order. CollectionError if they cannot be listed."""
    store = object_store(bucket)
    try:
        # Azure cannot start at a name: every page would be reached from the first one.
        yield from _by_folders(store, prefix) if isinstance(store, AzureStore) else _by_ranges(store, prefix)
    except InvalidPathError as error:
        raise OddKeyError(first_line(error)) from error
    except (BaseError, FileNotFoundError) as error:
        raise CollectionError(first_line(error)) from error


def _by_ranges(store: Store, prefix: str) -> Iterator[ObjectMeta]:
    """Objects by ranges of names, split while threads are free: at most two more requests for each full page."""
    letters: set[str] = set()
    spare = 0
    with ThreadPoolExecutor(_MAX_LISTINGS) as pool:
        running = {pool.submit(_page, store, prefix, (prefix, f"{prefix}0" if prefix else ""))}  # "0" comes after "/"
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            page, rest = done.pop().result()
            running |= done
            yield from page
            if rest is not None:
                letters.update(*(found["path"] for found in page))
                parts = _split(rest, letters, min(spare + 3, _MAX_LISTINGS - len(running)))
                spare += 3 - len(parts)
                running |= {pool.submit(_page, store, prefix, part) for part in parts}


def _page(store: Store, prefix: str, names: Range) -> tuple[list[ObjectMeta], Range | None]:
    """The first objects of a range, and the rest of the range.

    An object that stands for a folder has a slash at the end of its key, but not of its path: `a/` is listed after
    `a-b`, as `a`. So a range begins with the first path above its lower bound, and a page ends before its greatest one.
    """
    after, last = names
    found: list[ObjectMeta] = with_retries(
        lambda: list(next(iter(obstore.list(store, prefix or None, offset=after or None, chunk_size=_PAGE)), []))
    )
    paths = [entry["path"] for entry in found]
    for before, path in zip(accumulate(paths, max, initial=after), paths, strict=False):
        if path < before and not before.startswith(path):
            raise OddKeyError(f"{path} is listed after {before}: expected keys in the order of their bytes")
    here = dropwhile(lambda entry: entry["path"] <= after, found)
    greatest = max(paths, default=after)
    if len(found) < _PAGE or (last and greatest > last):
        return list(takewhile(lambda entry: not last or entry["path"] <= last, here)), None
    page = list(takewhile(lambda entry: entry["path"] < greatest, here))
    return page, (max(entry["path"] for entry in page), last)


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


def _by_folders(store: Store, prefix: str) -> Iterator[ObjectMeta]:
    """Objects by folders of one level, or of two if the first has few."""
    first = _list_below(store, prefix, pages=1)
    if len(first) < _PAGE:
        yield from first
        return
    with ThreadPoolExecutor(_MAX_LISTINGS) as pool:
        objects, folders = _one_level(store, prefix)
        if len(folders) < _MAX_LISTINGS:
            below = list(pool.map(lambda folder: _one_level(store, folder), folders))
            objects += [found for here, _ in below for found in here]
            folders = [folder for _, deeper in below for folder in deeper]
        yield from objects
        for part in pool.map(lambda folder: _list_below(store, folder), folders):
            yield from part


def _one_level(store: Store, prefix: str) -> tuple[list[ObjectMeta], list[str]]:
    found = with_retries(lambda: obstore.list_with_delimiter(store, prefix or None))
    return list(found["objects"]), list(found["common_prefixes"])


def _list_below(store: Store, prefix: str, pages: int | None = None) -> list[ObjectMeta]:
    """All objects below a prefix, or only the first `pages` of them."""
    return with_retries(
        lambda: list(chain.from_iterable(islice(obstore.list(store, prefix or None, chunk_size=_PAGE), pages)))
    )
