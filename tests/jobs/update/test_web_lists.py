"""Lists of web addresses: what a job makes of a picture that changed, is gone, came back or fails."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from index.collection import Collection
from jobs.embedding.report import Report
from jobs.errors import TooManyMissingError
from jobs.schedule.spec_file import read_spec
from likeness.cli.tables.job import closing_lines
from tests.support.collections.rejects_and_checks import read_checks
from tests.support.collections.storage_steps import KilledError, at, expire, kill
from tests.support.command_line import Run
from tests.support.nights.reembed_nights import DEMO, Nights, bmp
from tests.support.scripted_server import Player, Reply, Route, ScriptedServer, scripted

_TYPE = {"Content-Type": "image/bmp"}
_DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


def picture(seed: int, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(data=bmp(seed), headers=_TYPE | named)


def honest(seed: int, etag: str = "", modified: str = "") -> Route:
    """Answers 304 to a condition that holds."""
    headers = _TYPE | ({"ETag": etag} if etag else {}) | ({"Last-Modified": modified} if modified else {})

    def route(player: Player) -> None:
        conditions = [player.received.headers.get(name) for name in ("if-none-match", "if-modified-since")]
        same = conditions[0] == etag if etag else conditions[1] == modified if modified else False
        Reply(status=304 if same else 200, data=b"" if same else bmp(seed), headers=headers)(player)

    return route


@dataclass
class WebList:
    """A list of addresses on one server, and a night of the job for each day."""

    server: ScriptedServer
    nights: Nights
    now: datetime | None = None
    asked: list[str] = field(default_factory=list)

    def write(self, *paths: str, **metadata: list[Any]) -> None:
        rows = zip(paths, *metadata.values(), strict=True)
        lines = [",".join([f"{self.server.url}/{path}", *map(str, more)]) for path, *more in rows]
        self.nights.pictures.write_text("\n".join([",".join(["url", *metadata]), *lines]))

    def begin(self, count: int, *others: str) -> None:
        """The first night, with pictures that have ETags."""
        self.server.routes |= {f"/{seed}": honest(seed, f'"{seed}"') for seed in range(count)}
        self.write(*map(str, range(count)), *others)
        self.night()

    def night(self, days: float = 1, **fields: Any) -> Report:
        """The next night; `asked` then has the paths of its requests."""
        self.server.requests.clear()
        self.server.max_ongoing = 0
        now = self.now + timedelta(days=days) if self.now else datetime.now(UTC)
        self.now, self.nights.clock = now, lambda: now
        fields = {"source": None, "refresh": "1d", "max_reject_rate": 1, "index": False, **fields}
        report = self.nights.night(DEMO, **fields)
        self.asked = [request.path.strip("/") for request in self.server.requests]
        return report

    def rows(self) -> dict[str, int | str]:
        """For each path, the seed of its row's picture, or why it is rejected."""
        seeds = {hashlib.sha256(bmp(seed)).hexdigest(): seed for seed in range(30)}
        rows = self.nights.collection.live_rows(["uri", "content_hash", "error_reason"]).to_pylist()
        return {row["uri"].rpartition("/")[2]: row["error_reason"] or seeds[row["content_hash"]] for row in rows}


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebList]:
    with scripted() as server:
        yield WebList(server, Nights(tmp_path / "list.csv", str(tmp_path / "collection")))


_SECOND_NIGHTS: list[tuple[Route, Route, int | str, int]] = [
    (honest(1, '"1"'), honest(1, '"1"'), 1, 1),
    (honest(1, "", _DATE), honest(1, "", _DATE), 1, 1),
    (honest(1, 'W/"1"', _DATE), honest(1, 'W/"1"', _DATE), 1, 1),
    (honest(1, '"1"'), honest(1, '"2"'), 1, 1),
    (honest(1, '"1"'), picture(1), 1, 1),
    (picture(1), picture(1), 1, 1),
    (honest(1, '"1"'), honest(2, '"2"'), 2, 2),
    (honest(1, "", _DATE), honest(2, "", "Thu, 22 Oct 2015 07:28:00 GMT"), 2, 2),
    (picture(1, ETag='"1"'), picture(2, ETag='"1"'), 2, 2),
    (picture(1), picture(2), 2, 2),
    (honest(1, '"1"'), Reply(status=302, headers={"Location": "/other"}), 9, 2),
    (honest(1, '"1"'), Reply(status=404), 1, 1),
    (honest(1, '"1"'), Reply(status=410), 1, 1),
    (honest(1, '"1"'), Reply(status=403), 1, 1),
    (honest(1, '"1"'), Reply(status=500), 1, 1),
    (honest(1, '"1"'), Reply(status=503, headers={"Retry-After": "1"}), 1, 1),
    (honest(1, '"1"'), Reply(hang_up=True), 1, 1),
    (honest(1, '"1"'), Reply(data=bmp(1), missing=5, headers=_TYPE), 1, 1),
    (honest(1, '"1"'), Reply(status=304, data=b""), 1, 1),
    (honest(1, '"1"'), Reply(data=b"<p>no longer here</p>"), "not_an_image", 2),
    (Reply(status=404), honest(1, '"1"'), 1, 2),
    (Reply(status=404), Reply(status=404), "http_404", 1),
    (Reply(status=403), honest(1), 1, 2),
    (Reply(status=500), honest(1), 1, 1),
    (Reply(data=b"no picture"), honest(1), 1, 2),
]
"""What is at an address in the first night and later, its row after the second, and how often that asked for it."""


def _fails(route: Route) -> bool:
    gone = isinstance(route, Reply) and route.status in (404, 410)
    return isinstance(route, Reply) and not gone and (route.status >= 400 or route.hang_up or route.missing > 0)


def test_a_second_night_looks_again(web: WebList) -> None:
    numbers = range(len(_SECOND_NIGHTS))
    web.write(*map(str, numbers))
    web.server.routes |= {f"/{number}": first for number, (first, *_) in enumerate(_SECOND_NIGHTS)}
    web.server.routes["/other"] = picture(9)
    web.night()
    web.server.routes |= {f"/{number}": later for number, (_, later, *_) in enumerate(_SECOND_NIGHTS)}
    web.night()
    found = web.rows()
    asked = Counter(web.asked)
    for number, (_, _, row, times) in enumerate(_SECOND_NIGHTS):
        assert (found[str(number)], asked[str(number)]) == (row, times), number
    report = web.night(days=0.001)
    failing = {str(number) for number, (_, later, *_) in enumerate(_SECOND_NIGHTS) if _fails(later)}
    assert (set(web.asked), report.runs) == (failing, [])


def test_a_gone_picture_is_deleted_after_it_was_gone_often_enough_and_may_come_back(web: WebList) -> None:
    """A failing or dead address at which it never was stays a reject."""
    web.server.routes |= {"/dead": Reply(status=404), "/down": Reply(status=403)}
    web.begin(5, "dead", "down")
    others = {str(seed): seed for seed in range(4)} | {"dead": "http_404", "down": "http_403"}
    web.server.routes["/4"] = Reply(status=404)
    web.night(gone_after=2)
    assert web.rows() == {"4": 4, **others}
    report = web.night(gone_after=2)
    assert (report.counts.deleted, report.addresses.gone, web.rows()) == (1, 2, others)
    report = web.night(gone_after=2)
    assert (report.runs, web.asked.count("4"), web.rows()) == ([], 1, others)
    web.server.routes["/4"] = honest(4, '"4"')
    report = web.night(gone_after=2)
    assert (report.counts.new, report.counts.reused, web.rows()) == (1, 1, {"4": 4, **others})


def test_too_many_gone_pictures_change_nothing(web: WebList) -> None:
    web.begin(10)
    for seed in (2, 3, 4):
        del web.server.routes[f"/{seed}"]
    web.night()
    web.night()
    with pytest.raises(TooManyMissingError, match=r"3 of the 10 images of .* are no longer there"):
        web.night()
    assert len(web.rows()) == 10
    assert web.night(missing="keep").counts.deleted == 0
    assert web.rows()["3"] == 3
    assert web.night(max_missing=0.3).counts.deleted == 3
    assert web.rows() == {str(seed): seed for seed in (0, 1, 5, 6, 7, 8, 9)}


def test_rows_with_one_address_share_its_check_whatever_their_metadata(web: WebList) -> None:
    web.server.routes |= {"/a": honest(1, '"1"'), "/b": honest(2)}
    for price in range(2):
        web.write("a", "a", "b", id=["x", "y", "z"], price=[price, price, 7])
        report = web.night()
        assert (web.asked.count("a"), report.counts.reused) == (1, 2 if price else 0)
    web.server.routes["/a"] = honest(3, '"3"')
    web.write("a", "a", "b", id=["x", "y", "z"], price=[9, 9, 7])
    web.night()
    rows = web.nights.collection.live_rows(["image_id", "content_hash"]).to_pylist()
    found = {name: hashlib.sha256(bmp(seed)).hexdigest() for name, seed in (("x", 3), ("y", 3), ("z", 2))}
    assert {row["image_id"]: row["content_hash"] for row in rows} == found


def test_a_dry_run_asks_nothing_and_verify_hash_reads_everything(web: WebList) -> None:
    web.server.routes |= {"/a": picture(1, ETag='"1"'), "/b": honest(2, '"2"')}
    web.write("a", "b")
    web.night()
    web.server.routes["/a"] = Reply(status=304, data=b"")
    web.server.routes["/b"] = honest(3, '"2"')
    web.server.requests.clear()
    report = web.nights.night(DEMO, dry_run=True, refresh="1d")
    assert (report.addresses.due, report.addresses.later, web.server.requests) == (0, 2, [])
    tomorrow = web.nights.clock() + timedelta(days=1)
    web.nights.clock = lambda: tomorrow
    report = web.nights.night(DEMO, dry_run=True, refresh="1d")
    assert (report.addresses.due, report.counts.unchanged, web.server.requests) == (2, 2, [])
    web.server.routes["/a"] = picture(1)
    report = web.night(days=0.001, verify_hash=True, refresh="never")
    assert (web.rows(), sorted(web.asked)) == ({"a": 1, "b": 3}, ["a", "b", "b"])
    assert (report.addresses.unchanged, report.addresses.changed) == (1, 1)


def test_a_host_that_does_not_answer_is_left_alone_until_the_next_job(web: WebList) -> None:
    web.begin(20)
    routes = dict(web.server.routes)
    web.server.routes |= dict.fromkeys(routes, Reply(hang_up=True))
    report = web.night(per_host=2)
    assert 5 <= len(web.asked) <= 6
    assert (report.addresses.due, report.addresses.failed) == (20, len(web.asked))
    assert closing_lines(report)[0] == (
        f"web addresses: {len(web.asked)} looked at again ({len(web.asked)} failed); "
        f"{20 - len(web.asked)} due, whose hosts do not answer; 0 later"
    )
    web.server.routes |= routes
    report = web.night(days=0.001, per_host=2)
    assert (report.addresses.unchanged, web.server.max_ongoing <= 2) == (20, True)
    counts = report.known_counts()
    assert (counts["addresses_due"], counts["addresses_unchanged"], counts["addresses_failed"]) == (20, 20, 0)


def test_a_job_that_is_killed_goes_on_with_the_next_address(web: WebList) -> None:
    web.begin(20)
    web.server.routes["/0"] = honest(25, '"25"')
    with patch("jobs.addresses.record_checks._CHECKS_PER_FILE", 5):
        checks = iter(range(20))
        third = at(lambda path: path.startswith("checks/") and next(checks) == 2, after=True, action=kill)
        with third, pytest.raises(KilledError):
            web.night(per_host=1)
        expire(web.nights.collection.storage)
        first = {request.path.strip("/") for request in web.server.requests}
        assert len(first) >= 15
        web.night(days=0.0, per_host=1)
    assert web.rows() == {"0": 25} | {str(seed): seed for seed in range(1, 20)}
    assert len(first.intersection(web.asked) - {"0"}) == len(first) - 15


def test_a_host_that_asks_for_fewer_requests_gets_none(web: WebList) -> None:
    web.begin(20)
    web.server.routes["*"] = Reply(status=429, headers={"Retry-After": "3600"})
    routes, web.server.routes = web.server.routes, {"*": web.server.routes["*"]}
    assert (web.night(per_host=1).addresses.failed, len(web.asked)) == (1, 1)
    web.server.routes = routes
    assert web.night(days=0.001, per_host=1).addresses.unchanged == 20


def test_addresses_in_parquet_and_a_filter(web: WebList, tmp_path: Path) -> None:
    web.server.routes |= {f"/{seed}": honest(seed) for seed in range(4)}
    table = pa.table({"url": [f"{web.server.url}/{seed}" for seed in range(4)], "year": [1, 2, 3, 4]})
    pq.write_table(table, tmp_path / "list.parquet")
    job: dict[str, Any] = {"source": tmp_path / "list.parquet", "keep": {"year": {"$lte": 3}, "size": {"$gt": 1}}}
    web.night(**job)
    assert web.rows() == {"0": 0, "1": 1, "2": 2, "3": "filtered"}
    web.server.routes["/1"] = honest(7)
    web.server.routes["/3"] = honest(8)
    web.night(**job)
    assert (web.rows(), sorted(web.asked)) == ({"0": 0, "1": 7, "2": 2, "3": "filtered"}, ["0", "1", "1", "2"])
    report = web.night(**job)
    assert (report.runs, sorted(web.asked)) == ([], ["0", "1", "2"])
    web.night(**job | {"keep": None})
    assert web.rows() == {"0": 0, "1": 7, "2": 2, "3": 8}


def test_the_commands_show_what_was_found(web: WebList, run: Run, tmp_path: Path) -> None:
    web.server.routes |= {f"/{seed}": honest(seed, f'"{seed}"') for seed in range(5)}
    web.write(*map(str, range(6)))
    job = (str(web.nights.pictures), web.nights.location, "--device", "cpu")
    lenient = ("--max-reject-rate", "1")
    assert "web addresses" not in run("embed", *job, "--model", "demo", *lenient, "--refresh", "never").out
    web.server.routes |= {"/0": honest(9, '"9"'), "/1": Reply(status=500)}
    time.sleep(1.1)
    shown = run("reembed", *job, *lenient, "--refresh", "1s", "--dry-run").out
    assert "web addresses: 0 looked at again; 6 due; 0 later" in shown
    shown = run("embed", *job, *lenient, "--refresh", "1s").out
    assert "6 looked at again (3 unchanged, 1 changed, 1 gone, 1 failed); 0 later" in shown
    report = json.loads(run("reembed", *job, *lenient, "--refresh", "never", "--format", "json").out)
    assert ("addresses_due" in report, report["unchanged"]) == (False, 6)
    facts = json.loads(run("info", web.nights.location, "--format", "json").out)["web_addresses"]
    assert (facts["visited"], facts["gone"], facts["failed"]) == (6, 1, 1)
    assert "web addresses visited" in run("info", web.nights.location).out
    path = tmp_path / "job.yaml"
    path.write_text("source: list.csv\ncollection: collection\nrefresh: 12h\ngone_after: 5\nper_host: 2\n")
    spec = read_spec(path)
    assert (spec.refresh, spec.gone_after, spec.per_host) == (43_200, 5, 2)


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_the_same_rows_and_checks_on_ray(
    web: WebList, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = Mock(return_value=nullcontext())  # but it is the shared one
    monkeypatch.setattr("jobs.cluster.session.ray_cluster", joined)
    web.write(*map(str, range(40)))
    found, places = [], {"local": ("--on", "local"), "ray": ("--address", "head:6379")}
    for first in (0, 20):  # changes half of them
        time.sleep(1.1 if first else 0)  # until they are due again
        web.server.routes |= {f"/{seed}": honest(seed + first, f'"{seed + first}"', _DATE) for seed in range(first, 40)}
        for on, place in places.items():
            options = ("--model", "demo", "--device", "cpu", *place, "--refresh", "1s", "--per-host", "2")
            job = run("reembed", web.nights.pictures, tmp_path / on, *options)
            assert job.code == 0, job.err
    assert {call.args for call in joined.call_args_list} == {("head:6379",)}
    for on in places:
        collection = Collection.open(str(tmp_path / on))
        rows = collection.live_rows(["image_id", "content_hash", "etag", "modified", "embedding"])
        checks = read_checks(collection).drop_columns(["checked"]).sort_by("uri")
        found.append((rows, checks))
    assert found[0] == found[1]
    assert rows["etag"].to_pylist().count('"55"') == checks["etag"].to_pylist().count('"55"') == 1
