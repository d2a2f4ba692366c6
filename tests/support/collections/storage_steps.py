"""Run an action at a step of a job: before or after it changes a file of a collection."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import Any
from unittest.mock import patch

from index.collection.layout import LEASE
from index.collection.lease import LeaseRecord
from index.storage import Storage

STEPS = {
    "rows": r"runs/[^/]+/rows/.*\.parquet",
    "file list": r"runs/[^/]+/files[^/]*\.parquet",
    "facts": r"runs/[^/]+/facts/.*\.parquet",
    "run manifest": r"runs/[^/]+/manifest\.json",
    "segment": r"index/segments/.*/rows\.arrow",
    "version manifest": r"index/[^/]+/manifest\.json",
    "CURRENT": r"CURRENT",
}
"""The commit steps, by the path they write."""

_CHANGES = (Storage.write_atomic, Storage.put_file, Storage.delete)
_UPDATE = Storage.update


class KilledError(BaseException):
    """Simulates that the process is killed: afterwards it can no longer change the collection."""


@contextmanager
def at(matches: Callable[[str], bool], *, after: bool, action: Callable[[], None]) -> Iterator[None]:
    """During the block, call `action` once: before or after the first change of a file whose path `matches`.

    `action` may raise `KilledError`.
    """
    done, killed = False, False

    def changed(change: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal done, killed
        if killed:
            raise KilledError
        path = signature(change).bind(*arguments).arguments["path"]
        here = not done and matches(path)
        done |= here
        try:
            if here and not after:
                action()
            result = change(*arguments)
            if here and after:
                action()
        except KilledError:
            killed = True
            raise
        return result

    def update(storage: Storage, path: str, change: Callable[[bytes], bytes]) -> None:
        if path == LEASE and killed:
            raise OSError("killed")
        if path == LEASE:
            _UPDATE(storage, path, change)
        else:
            changed(_UPDATE, storage, path, change)

    def method(change: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: changed(change, *arguments)

    with ExitStack() as patches:
        for change in _CHANGES:
            patches.enter_context(patch.object(Storage, change.__name__, method(change)))
        patches.enter_context(patch.object(Storage, "update", update))
        yield


def is_step(name: str) -> Callable[[str], bool]:
    """Matches the path of one of `STEPS`."""
    return lambda path: re.fullmatch(STEPS[name], path) is not None


def is_number(number: int) -> Callable[[str], bool]:
    """Matches the path of the `number`-th change, from 1."""
    left = iter(range(number - 1, -1, -1))
    return lambda _: next(left, -1) == 0


def kill() -> None:
    raise KilledError


def expire(storage: Storage) -> None:
    """Let the lease expire, if there is one."""

    def change(content: bytes) -> bytes:
        if not content:
            return content
        past = datetime.now(UTC) - timedelta(seconds=1)
        return LeaseRecord.from_bytes(content).model_copy(update={"expires_at": past}).to_bytes()

    _UPDATE(storage, LEASE, change)
