"""Whatever happens to pictures and jobs, after a night the rows and the index match the source."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from embedder.errors import FetchError
from embedder.fetch import Fetcher
from embedder.fetch.validators import Download
from index.errors import DamagedVersionError, LeaseHeldError, LeaseLostError
from index.versions.promotion import rollback
from index.versions.prune import prune
from jobs.embedding.report import Report
from tests.support.collections.storage_steps import KilledError, at, expire, is_number, kill
from tests.support.nights.reembed_nights import (
    BROKEN,
    DEMO,
    Nights,
    assert_rows_match_files,
    assert_search_is_exact,
    bmp,
)

STAYS = ("pictures/stays.bmp", "more/remains.bmp")  # an index cannot be empty
FILES = st.sampled_from(
    ["pictures/a.bmp", "pictures/b.bmp", "pictures/sub/a.bmp", "pictures/sub/b.bmp", "more/x.bmp", "more/y.bmp"]
)
SOURCES = st.sampled_from(["pictures", "more"])
# An event, the number of the file change at which it happens, and whether after it. A night changes about 15 files.
EVENTS = st.one_of(
    st.none(), st.tuples(st.sampled_from(["killed", "second job", "overtaken"]), st.integers(1, 16), st.booleans())
)


class AnyNights(RuleBasedStateMachine):
    """Two folders of pictures, which are two sources of one collection, and two models."""

    other: ClassVar[str]
    """The second model's folder."""

    def __init__(self) -> None:
        super().__init__()
        self.models = (None, DEMO, self.other)
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.nights = Nights(self.root / "pictures", str(self.root / "collection"), block=2)
        self.now = 1_700_000_000
        self.unreachable: set[str] = set()

    def teardown(self) -> None:
        self.folder.cleanup()

    @initialize()
    def begin(self) -> None:
        for seed, file in enumerate(STAYS):
            self.write(file, seed)
        self.night("pictures", 1, None)
        self.night("more", 0, None)

    # What happens to the pictures

    @rule(file=FILES, seed=st.integers(0, 3))
    def write(self, file: str, seed: int) -> None:
        self._put(file, bmp(seed))

    @rule(file=FILES, times=st.integers(1, 2))
    def break_it(self, file: str, times: int) -> None:
        self._put(file, BROKEN * times)

    @rule(file=FILES, other=FILES)
    def copy(self, file: str, other: str) -> None:
        if (self.root / file).exists():
            self._put(other, (self.root / file).read_bytes())

    @rule(file=FILES, other=FILES)
    def move(self, file: str, other: str) -> None:
        if (self.root / file).exists():
            (self.root / other).parent.mkdir(exist_ok=True)
            (self.root / file).replace(self.root / other)

    @rule(file=FILES)
    def delete(self, file: str) -> None:
        (self.root / file).unlink(missing_ok=True)

    @rule()
    def rename_a_folder(self) -> None:
        here, there = self.root / "pictures" / "sub", self.root / "pictures" / "bus"
        if here.exists():
            shutil.rmtree(there, ignore_errors=True)
            here.rename(there)

    @rule(file=FILES)
    def become_unreachable(self, file: str) -> None:
        """Only for the next night."""
        self.unreachable.add(file)

    # What happens to the collection

    @rule(source=SOURCES, model=st.integers(0, 2), event=EVENTS)
    def night(self, source: str, model: int, event: tuple[str, int, bool] | None) -> None:
        others = self._ids_of_others(source)
        wanted = self.models[model] or self._live_model()
        # A machine that pauses for minutes must not end a lease in the middle of a night.
        patient = patch("index.collection.lease.TTL", timedelta(days=1))
        with patient, patch.object(Fetcher, "download", self._fetch(Fetcher.download)):
            with self._happening(event, lambda: self._run(source, model, wanted)):
                try:
                    self._run(source, model, wanted)
                except KilledError:
                    expire(self.nights.collection.storage)
                    return
                except LeaseLostError:
                    assert event is not None
                    assert event[0] == "overtaken"
            # Wherever a job was overtaken, it has not damaged the other's work.
            self._check(source, wanted)
        assert self._ids_of_others(source) == others
        if not self.unreachable:
            runs = len(self.nights.collection.runs())
            assert self._run(source, model, wanted).runs == []
            assert self.nights.embedded[-1] == []
            assert len(self.nights.collection.runs()) == runs
        self.unreachable.clear()

    @rule()
    def roll_back(self) -> None:
        with suppress(DamagedVersionError):  # there is none to go back to
            rollback(self.nights.collection)

    @rule(keep=st.integers(1, 2))
    def prune(self, keep: int) -> None:
        with (
            patch("index.versions.prune.GRACE", timedelta(0)),
            patch("index.versions.prune.ABANDONED_AFTER", timedelta(0)),
            patch("index.collection.merged.sets.KEPT_FOR", timedelta(0)),
        ):
            prune(self.nights.collection, keep)

    @invariant()
    def an_index_answers(self) -> None:
        if (self.root / "collection" / "CURRENT").exists():
            assert_search_is_exact(self.nights.collection)

    def _run(self, source: str, model: int, wanted: str) -> Report:
        report = self.nights.night(self.models[model], source=self.root / source, max_missing=1.0, max_reject_rate=1.0)
        self._check(source, wanted)
        if report.note is None:
            collection = self.nights.collection
            live = collection.read_version(str(collection.current()))
            assert live.runs == [run.run_id for run in collection.runs()]
            assert live.model.id == wanted
        return report

    def _check(self, source: str, wanted: str) -> None:
        folder = self.root / source
        unreachable = {file.removeprefix(f"{source}/") for file in self.unreachable}
        assert_rows_match_files(self.nights, wanted, folder, unreachable)
        assert_search_is_exact(self.nights.collection)

    def _happening(
        self, event: tuple[str, int, bool] | None, run: Callable[[], Report]
    ) -> AbstractContextManager[None]:
        if event is None:
            return nullcontext()
        what, number, after = event
        happen: dict[str, Callable[[], None]] = {
            "killed": kill,
            "second job": partial(self._second_job, run),
            "overtaken": partial(self._overtake, run),
        }
        return at(is_number(number), after=after, action=happen[what])

    def _second_job(self, run: Callable[[], Report]) -> None:
        before = self._files()
        with pytest.raises(LeaseHeldError, match="`likeness reembed` of"):
            run()
        assert self._files() == before

    def _overtake(self, run: Callable[[], Report]) -> None:
        """As if the job had been frozen for longer than its lease, and another one had run."""
        expire(self.nights.collection.storage)
        run()

    def _fetch(self, fetch: Callable[..., Download]) -> Callable[..., Download]:
        def fetched(fetcher: Fetcher, uri: str) -> Download:
            if uri in {str(self.root / file) for file in self.unreachable}:
                raise FetchError("timeout", f"{uri}: too slow", retryable=True)
            return fetch(fetcher, uri)

        return fetched

    def _put(self, file: str, data: bytes) -> None:
        """Gives each file its own time, because the clocks of file systems are coarse."""
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.now += 1
        os.utime(path, (self.now, self.now))

    def _files(self) -> dict[str, tuple[int, int]]:
        # Whoever looks for the lease may write to its lock.
        paths = [
            path for path in (self.root / "collection").rglob("*") if path.is_file() and "lease.lock" not in path.name
        ]
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}

    def _ids_of_others(self, source: str) -> list[Any]:
        if not (self.root / "collection").exists():
            return []
        rows = self.nights.collection.live_rows(["image_id", "uri"]).to_pylist()
        return [row["image_id"] for row in rows if not row["uri"].startswith(f"{self.root / source}/")]

    def _live_model(self) -> str:
        collection = self.nights.collection
        return collection.read_version(str(collection.current())).model.id


@pytest.mark.parametrize(
    ("examples", "steps"),
    [
        pytest.param(6, 15, id="some", marks=pytest.mark.slow),
        pytest.param(120, 25, id="many", marks=[pytest.mark.long, pytest.mark.timeout(3_600)]),
    ],
)
def test_after_any_nights_rows_and_index_are_what_the_sources_hold(other_model: str, examples: int, steps: int) -> None:
    # On a busy machine, drawing examples may take long too.
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    run_state_machine_as_test(
        type("AnyNights", (AnyNights,), {"other": other_model}),
        settings=settings(patient, max_examples=examples, stateful_step_count=steps),
    )
