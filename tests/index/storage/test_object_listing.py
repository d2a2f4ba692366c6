"""Parallel listings: every key exactly once, whatever the keys are; few requests for many keys."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from obstore.exceptions import InvalidPathError
from obstore.store import S3Store

from index.storage.bucket_address import Bucket
from index.storage.list_objects import KeyOrderError, list_objects

LONGEST = 8
PAGE = LONGEST + 1  # more than a key can have folders, as is the real page of a thousand


class Listed:
    """A fake of obstore, of boto3 and of a bucket with these keys."""

    def __init__(self, keys: set[str]) -> None:
        self.keys = sorted(key.encode() for key in keys)
        self.requests = 0

    def list(self, store: Any, prefix: str | None, *, offset: str | None = None, chunk_size: int) -> Iterator[Any]:
        page = self._page(prefix or "", offset or "", chunk_size)
        if not all(is_path(key.removeprefix("/")) for key in (*page, offset or "a")):
            raise InvalidPathError("Encountered object with invalid path")
        yield [{"path": key.strip("/"), "size": size(key)} for key in page]

    def list_any_keys(self, bucket: Bucket, prefix: str, after: str) -> Iterator[Any]:
        page = self._page(prefix, after, len(self.keys))
        yield from ({"path": key.removesuffix("/"), "size": size(key)} for key in page)

    def _page(self, prefix: str, after: str, count: int) -> Sequence[str]:
        self.requests += 1
        below = f"{prefix}/".encode() if prefix else b""
        start = max(bisect_left(self.keys, below), bisect_right(self.keys, after.encode()))
        found = takewhile(lambda key: key.startswith(below), islice(self.keys, start, start + count))
        return [key.decode() for key in found]


class Descending(Listed):
    def _page(self, prefix: str, after: str, count: int) -> Sequence[str]:
        return [key.decode() for key in self.keys[::-1]][:count]


class Restarting(Listed):
    """Cannot start at a name."""

    def _page(self, prefix: str, after: str, count: int) -> Sequence[str]:
        return super()._page(prefix, "", count)


def size(key: str) -> int:
    return 0 if key.endswith("/") else 1


def listed(
    keys: set[str], prefix: str, page: int = 1000, scheme: str = "gs", fake: Listed | None = None
) -> tuple[list[str], int]:
    """Paths below a prefix, and the number of requests."""
    fake = fake or Listed(keys)
    with (
        patch("index.storage.list_objects.object_store", lambda _: S3Store("bucket")),
        patch("index.storage.list_objects.obstore.list", fake.list),
        patch("index.storage.list_objects._list_any_keys", fake.list_any_keys),
        patch("index.storage.list_objects._PAGE", page),
    ):
        paths = [found["path"] for found in list_objects(Bucket.of(f"{scheme}://anonymous@bucket")[0], prefix)]
    return paths, fake.requests


def is_path(key: str) -> bool:
    return not {"", ".", ".."} & set(key.removesuffix("/").split("/"))


KEYS = st.text("ab0-./é\U0010ffff", min_size=1, max_size=LONGEST).filter(is_path)


@given(st.sets(KEYS, max_size=80), st.sampled_from(["", "pictures"]))
@example({"a", "a.jpg", "a/", "a/b", "a-b/c", "a-b/", "a-"} | {f"a-{number}" for number in range(PAGE)}, "")
def test_every_key_is_listed_once(keys: set[str], prefix: str) -> None:
    below = {f"{prefix}/{key}" if prefix else key for key in keys}
    beside = {f"{prefix}-/a", f"{prefix}0", prefix} if prefix else set()
    paths, _ = listed(below | beside, prefix, PAGE)
    assert sorted(paths) == sorted(key.removesuffix("/") for key in below)


@given(
    st.sets(st.text("a0-./\U0010ffff", min_size=1, max_size=LONGEST), max_size=80),
    st.sampled_from(["", "pictures"]),
)
@example({"a//b", "a/", "a//", *(f"a-{number}" for number in range(PAGE))}, "")
def test_keys_that_are_not_paths_are_listed_once_on_s3(keys: set[str], prefix: str) -> None:
    below = {f"{prefix}/{key}" if prefix else key.lstrip("/") or "a" for key in keys}  # obstore drops a first slash
    paths, _ = listed(below, prefix, PAGE, "s3")
    assert sorted(paths) == sorted(key.removesuffix("/") for key in below)


def test_keys_that_are_not_in_order_are_refused() -> None:
    """Their order decides where other listings begin and end."""
    with pytest.raises(KeyOrderError, match=r"0\.jpg is listed after b\.jpg: expected keys in the order"):
        listed({"/b.jpg", "0.jpg"}, "")


@pytest.mark.parametrize("store", [Descending, Restarting])
def test_keys_in_another_order_are_listed_once_on_s3(store: type[Listed]) -> None:
    """Some are listed by then; a folder's object is not taken for the object with its name."""
    keys = {f"b{number}" for number in range(3 * PAGE)} | {"a", "a/", "a/b", "b", "b/", "b//c"}
    paths, _ = listed(keys, "", PAGE, "s3", store(keys))
    assert sorted(paths) == sorted(key.removesuffix("/") for key in keys)


@pytest.mark.parametrize(
    "names",
    [
        {f"{number:06}.jpg" for number in range(12_000)},
        {f"{number:0100}.jpg" for number in range(12_000)},
        {f"{number:04}.jpg" for number in range(1_000)} | {f"a{number:06}/b.jpg" for number in range(12_000)},
    ],
    ids=["at one level", "long names", "loose files, then folders"],
)
def test_many_objects_are_listed_in_few_requests(names: set[str]) -> None:
    paths, requests = listed(names, "")
    assert len(paths) == len(set(paths)) == len(names)
    assert requests <= 3 * len(names) // 1000 + 1
