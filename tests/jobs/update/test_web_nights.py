"""Nights with a list of web addresses, some of them killed: each night's rows are those of a model of the web."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from tests.support.collections.storage_steps import KilledError, at, expire, is_number, kill
from tests.support.nights.reembed_nights import DEMO, PRECISION, Nights, assert_search_is_exact, bmp, vector_of
from tests.support.nights.web_hosts import State, WebHosts, web_hosts

pytestmark = pytest.mark.timeout(3000)

_PER_HOST = 3
_GONE_AFTER = 3
_PICTURES = range(3000)


@dataclass
class Known:
    """What a collection knows of an address. `row` is the seed of its picture, or "reject"; `last` the last picture."""

    row: int | str | None = None
    last: int | None = None
    gone: int = 0
    failed: int = 0

    def visit(self, state: State) -> None:
        """The rules of docs/jobs.md, by what is at the address."""
        if isinstance(state, int):
            self.row, self.last, self.gone, self.failed = state, state, 0, 0
        elif state == "gone":
            self.gone, self.failed = self.gone + 1, 0
        else:
            self.failed += 1
        self.settle()

    def settle(self) -> None:
        if self.gone >= _GONE_AFTER and self.row != "reject":
            self.row = None
        elif self.row is None:  # it is new on the list, or again
            self.row = "reject" if self.last is None else self.last


@dataclass
class Web:
    """The hosts, the list with its collection, and what is known of all addresses and of those that are listed."""

    hosts: WebHosts
    nights: Nights
    drawn: random.Random
    seeds: Iterator[int]
    known: dict[str, Known] = field(default_factory=dict)
    listed: dict[str, Known] = field(default_factory=dict)

    def change(self, numbers: list[int]) -> None:
        """List these addresses and change, remove, restore or break some of them."""
        states, drawn = self.hosts.states, self.drawn
        self.hosts.down = {host for host in self.hosts.down if drawn.random() < 0.3}
        if drawn.random() < 0.2:
            self.hosts.down.add(drawn.choice(self.hosts.servers).url)
        for uri in map(self.hosts.address, numbers):
            state, chance = states.get(uri), drawn.random()
            if state is None:
                states[uri] = next(self.seeds) if chance < 0.98 else "gone" if chance < 0.99 else "failing"
            elif state == "failing":
                states[uri] = next(self.seeds) if chance < 0.5 else self._last(uri) if chance < 0.8 else state
            elif state == "gone":
                states[uri] = next(self.seeds) if chance < 0.1 else self._last(uri) if chance < 0.2 else state
            elif chance < 0.04:
                states[uri] = next(self.seeds) if chance < 0.02 else "gone" if chance < 0.03 else "failing"
        self.nights.pictures.write_text("\n".join(["url", *map(self.hosts.address, numbers)]))
        self.listed = {uri: self.known.setdefault(uri, Known()) for uri in map(self.hosts.address, numbers)}
        for uri in self.known.keys() - self.listed.keys():
            self.known[uri].row = None

    def _last(self, uri: str) -> int:
        row = self.known[uri].row
        return row if isinstance(row, int) else next(self.seeds)

    def night(self, kill_at: int | None) -> None:
        """Run the night's job, killed at the `kill_at`-th change of a file and run again, and compare it."""
        self.hosts.begin_night()
        before = {uri: known.row for uri, known in self.listed.items()}
        killed = at(is_number(kill_at), after=bool(kill_at % 2), action=kill) if kill_at else nullcontext()
        was_killed = False
        try:
            with killed:
                self._run()
        except KilledError:
            was_killed = True
            assert self.hosts.max_ongoing <= _PER_HOST
            expire(self.nights.collection.storage)
            self._run()
        asked = self.hosts.requests
        assert self.hosts.max_ongoing <= _PER_HOST * (1 + was_killed)  # a killed job's requests may be under way
        assert asked.keys() <= self.listed.keys()
        for uri, known in self.listed.items():
            if uri in asked:
                known.visit("failing" if uri.rpartition("/")[0] in self.hosts.down else self.hosts.states[uri])
            else:  # it is failing, or its host is: it is tried again later
                assert known.failed or uri.rpartition("/")[0] in self.hosts.down, uri
                known.settle()
        self._compare_rows()
        unchanged = {uri for uri, known in self.listed.items() if known.row == before[uri] != "reject"}
        assert {asked[uri] for uri in unchanged} <= {0, 1, 1 + was_killed}
        if not was_killed:
            assert {uri for uri in unchanged if self._has_validators(uri)}.isdisjoint(self.hosts.unconditional)

    def _run(self) -> None:
        self.nights.night(
            None if self.nights.embedded else DEMO,
            refresh="1d",
            per_host=_PER_HOST,
            gone_after=_GONE_AFTER,
            max_reject_rate=0.1,
        )

    def _has_validators(self, uri: str) -> bool:
        """Whether the row's picture came with any, and was not gone or failing since."""
        number = int(uri.rpartition("/")[2].removesuffix(".bmp"))
        return number // len(self.hosts.servers) % 5 != 3 and self.known[uri].row is not None

    def _compare_rows(self) -> None:
        rows = self.nights.collection.live_rows(["uri", "content_hash", "error_reason"]).to_pylist()
        found = {row["uri"]: "reject" if row["error_reason"] else row["content_hash"] for row in rows}
        expected = {
            uri: hashlib.sha256(bmp(known.row)).hexdigest() if isinstance(known.row, int) else known.row
            for uri, known in self.listed.items()
            if known.row is not None
        }
        assert found == expected


@pytest.mark.parametrize(
    ("addresses", "hosts", "nights"),
    [
        pytest.param(240, 6, 8, marks=pytest.mark.slow),
        pytest.param(3000, 20, 30, marks=pytest.mark.long),
    ],
)
def test_rows_follow_the_web(tmp_path: Path, addresses: int, hosts: int, nights: int) -> None:
    drawn, begin = random.Random(addresses), datetime.now(UTC)
    with web_hosts(hosts) as servers, patch("jobs.addresses.record_checks._CHECKS_PER_FILE", addresses // 8):
        job = Nights(
            tmp_path / "list.csv",
            str(tmp_path / "collection"),
            block=addresses // 8,
            clock=lambda: begin + timedelta(days=servers.night),
        )
        web = Web(servers, job, drawn, iter(range(10**6)))
        for night in range(nights):
            gone = set(drawn.sample(range(addresses), night * addresses // 300))
            first = addresses * 9 // 10 + night * addresses // 10 // nights  # some are listed later
            web.change([number for number in range(first) if number not in gone or night % 3])
            web.night(drawn.randrange(1, 30) if night % 2 else None)
        assert_search_is_exact(job.collection)
        rows = job.collection.live_rows(["uri", "embedding"]).to_pylist()
        for row in drawn.sample([row for row in rows if row["embedding"]], 50):
            seed = web.known[row["uri"]].row
            assert isinstance(seed, int)
            np.testing.assert_allclose(row["embedding"], vector_of(bmp(seed), DEMO), atol=PRECISION)
