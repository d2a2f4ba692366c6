"""Whatever happens to the pictures and to the jobs: after a night the rows and the index are what the source holds."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from embedder.fake import FakeEmbedder
from index.search import Searcher
from jobs.request import EmbedOptions
from tests.reembed_nights import Nights, assert_rows_are_what_is_there, bmp

MODELS = (FakeEmbedder, partial(FakeEmbedder, dim=8))
NAMES = st.sampled_from(["a.bmp", "b.bmp", "c.bmp", "sub/a.bmp", "sub/d.bmp", "sub/e.bmp"])
SEEDS = st.integers(0, 3)
MODEL = st.integers(0, len(MODELS) - 1)
CHANGES = st.one_of(
    st.tuples(st.just("write"), NAMES, SEEDS),
    st.tuples(st.just("break"), NAMES, SEEDS),
    st.tuples(st.just("copy"), NAMES, NAMES),
    st.tuples(st.just("move"), NAMES, NAMES),
    st.tuples(st.just("delete"), NAMES, NAMES),
)
# A night with a model, that is stopped after so many blocks, or runs through.
NIGHTS = st.tuples(st.just("night"), MODEL, st.one_of(st.none(), st.integers(1, 3)))


class StoppedError(Exception):
    pass


class Clock:
    """Gives every file that is written a time of its own, for file systems' clocks are coarse."""

    def __init__(self) -> None:
        self.now = 1_700_000_000

    def touch(self, path: Path) -> None:
        self.now += 1
        os.utime(path, (self.now, self.now))


def change(folder: Path, clock: Clock, kind: str, name: str, other: str | int) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if kind == "write":
        path.write_bytes(bmp(int(other)))
        clock.touch(path)
    elif kind == "break":
        path.write_bytes(b"no picture" * (1 + int(other)))
        clock.touch(path)
    elif path.exists() and kind == "delete":
        path.unlink()
    elif path.exists() and name != other:
        target = folder / str(other)
        target.parent.mkdir(exist_ok=True)
        if kind == "move":
            path.replace(target)
        else:
            shutil.copy(path, target)
            clock.touch(target)


def night(nights: Nights, model: int, stop_after: int | None) -> bool:
    """Whether the night ran through."""
    blocks = count(1)

    def stop() -> None:
        if next(blocks) == stop_after:
            raise StoppedError

    try:
        nights.night(
            MODELS[model],
            after_block=stop,
            max_missing=1.0,
            options=EmbedOptions(max_reject_rate=1),
        )
    except StoppedError:
        return False
    return True


def assert_search_is_exact(nights: Nights) -> None:
    rows = [row for row in nights.collection.live_rows().to_pylist() if row["embedding"] is not None]
    vectors = np.array([row["embedding"] for row in rows], np.float32)
    found = Searcher.open(nights.collection).search(vectors, len(rows))
    for row, matches in zip(rows, found, strict=True):
        exact = vectors @ np.array(row["embedding"], np.float32)
        assert {match.image_id for match in matches} == {row["image_id"] for row in rows}
        np.testing.assert_allclose([match.score for match in matches], np.sort(exact)[::-1], atol=1e-5)


@settings(max_examples=12, deadline=None)
@given(steps=st.lists(st.one_of(CHANGES, CHANGES, NIGHTS), min_size=4, max_size=25), last=MODEL)
def test_after_any_nights_rows_and_index_are_what_the_source_holds(steps: list[tuple[Any, ...]], last: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, clock = Path(name) / "pictures", Clock()
        folder.mkdir()
        change(folder, clock, "write", "stays.bmp", 9)
        nights = Nights(folder, Path(name) / "collection", block=2)
        for step in [*steps, ("night", last, None)]:
            if step[0] != "night":
                change(folder, clock, *step)
            elif night(nights, step[1], step[2]):
                assert_rows_are_what_is_there(nights, MODELS[step[1]])
                assert_search_is_exact(nights)
                before = nights.collection.runs()
                assert night(nights, step[1], None)
                assert nights.embedded[-1] == []
                assert nights.collection.runs() == before
