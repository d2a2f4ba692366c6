"""Parallel listings: every key exactly once, whatever the keys are; few requests for many keys."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from obstore.store import S3Store

from index.storage.bucket_address import Bucket
from index.storage.list_objects import OddKeyError, list_objects

LONGEST = 8
PAGE = LONGEST + 1  # more than a key can have folders, as is the real page of a thousand


class Listed:
    """A fake of obstore and an S3 bucket with these keys."""

    def __init__(self, keys: set[str]) -> None:
        self.keys = sorted(key.encode() for key in keys)
        self.requests = 0

    def list(self, store: Any, prefix: str | None, *, offset: str | None = None, chunk_size: int) -> Iterator[Any]:
        self.requests += 1
        below = f"{prefix}/".encode() if prefix else b""
        start = max(bisect_left(self.keys, below), bisect_right(self.keys, (offset or "").encode()))
        found = takewhile(lambda key: key.startswith(below), islice(self.keys, start, start + chunk_size))
        yield [{"path": key.decode().strip("/")} for key in found]


def listed(keys: set[str], prefix: str, page: int = 1000) -> tuple[list[str], int]:
    """Paths below a prefix, and the number of requests."""
    fake = Listed(keys)
    with (
        patch("index.storage.list_objects.object_store", lambda _: S3Store("bucket")),
        patch("index.storage.list_objects.obstore.list", fake.list),
        patch("index.storage.list_objects._PAGE", page),
    ):
        paths = [found["path"] for found in list_objects(Bucket.of("s3://anonymous@bucket")[0], prefix)]
    return paths, fake.requests


def is_path(key: str) -> bool:
    return not {"", ".", ".."} & set(key.removesuffix("/").split("/"))


KEYS = st.text("ab0-./é\U0010ffff", min_size=1, max_size=LONGEST).filter(is_path)


@settings(deadline=None)
@given(st.sets(KEYS, max_size=80), st.sampled_from(["", "pictures"]))
@example({"a", "a.jpg", "a/", "a/b", "a-b/c", "a-b/", "a-"} | {f"a-{number}" for number in range(PAGE)}, "")
def test_every_key_is_listed_once(keys: set[str], prefix: str) -> None:
    below = {f"{prefix}/{key}" if prefix else key for key in keys}
    beside = {f"{prefix}-/a", f"{prefix}0", prefix} if prefix else set()
    paths, _ = listed(below | beside, prefix, PAGE)
    assert sorted(paths) == sorted(key.removesuffix("/") for key in below)


def test_keys_that_are_not_in_order_are_refused() -> None:
    """Their order decides where other listings begin and end."""
    with pytest.raises(OddKeyError, match=r"0\.jpg is listed after b\.jpg: expected keys in the order of their bytes"):
        listed({"/b.jpg", "0.jpg"}, "")


@pytest.mark.parametrize(
    "names",
    [
        {f"{number:06}.jpg" for number in range(100_000)},
        {f"{number:0100}.jpg" for number in range(100_000)},
        {f"{number:04}.jpg" for number in range(1_000)} | {f"a{number:06}/b.jpg" for number in range(100_000)},
    ],
    ids=["at one level", "long names", "loose files, then folders"],
)
def test_many_objects_are_listed_in_few_requests(names: set[str]) -> None:
    paths, requests = listed(names, "")
    assert len(paths) == len(set(paths)) == len(names)
    assert requests <= 3 * len(names) // 1000 + 1
