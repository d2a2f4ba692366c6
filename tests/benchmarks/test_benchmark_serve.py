"""The arithmetic of the service's benchmark, its clients, and the bare loop it compares the service with."""

import time
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from benchmarks.common.collections import make_collection
from benchmarks.common.load import TimedSearch, closed_loop, load, search_form, search_once
from benchmarks.common.servers import free_port
from benchmarks.serve.bare import Bare, bare_app
from benchmarks.serve.speed import rate_of, steady
from index.search import Searcher
from jobs.demo.gallery import plan_exhibit
from tests.support.pictures.tiny_checkpoints import save_clip
from tests.support.scripted_server import Reply, scripted


def test_a_rate_counts_whole_turns_of_bursts() -> None:
    # Four clients in batches: one answer, then three together, every 2 s; the fifth batch was cut short.
    ends = [0.0, 1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 4.0, 5.0, 5.0, 5.0, 6.0]
    assert rate_of(ends, 4) == 2.0
    assert rate_of([0.0, 0.5, 1.0, 1.5], 1) == 2.0


def test_searches_count_until_the_first_client_stops() -> None:
    searches = [TimedSearch(at=at, seconds=1.0, picture="a", status=200, retry_after="", body=b"") for at in range(4)]
    assert len(steady(searches, seconds=1.5, answers=0)) == 2  # the first answer after 1.5 s came at 2 s
    assert len(steady(searches, seconds=1.5, answers=3)) == 3
    assert len(steady(searches, seconds=9.0, answers=0)) == 4


REFUSAL = Reply(status=429, headers={"Retry-After": "1"}, silent_s=0.01)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(5):
        (folder / str(number)).write_bytes(b"picture %d" % number)
    return folder


def test_clients_search_concurrently_for_every_picture_in_turn(pictures: Path) -> None:
    with scripted(Reply(silent_s=0.01)) as server:
        searches = closed_loop(server.url, pictures, clients=4, seconds=0.0, answers=20)
    assert [each.ended for each in searches] == sorted(each.ended for each in searches)
    assert all(each.seconds >= 0.01 and each.answer == {} for each in searches)
    assert server.max_ongoing == 4
    assert 20 <= len(searches) == len(server.requests) <= 23
    for number in range(5):
        assert sum(b"picture %d" % number in each.body for each in server.requests) in (4, 5), number


def test_a_load_goes_on_until_its_block_ends(pictures: Path) -> None:
    with scripted(REFUSAL) as server, load(server.url, pictures, rate=50.0) as running:
        while len(server.requests) < 10:
            time.sleep(0.01)
    assert len(running.searches) == len(server.requests) >= 10
    assert {(each.status, each.retry_after) for each in running.searches} == {(429, "1")}
    assert [each.picture for each in running.searches[:6]] == ["0", "1", "2", "3", "4", "0"]
    assert running.between(running.searches[2].at, running.searches[4].at) == running.searches[2:4]


def test_a_search_without_an_answer_has_the_error() -> None:
    search = search_once(f"http://127.0.0.1:{free_port()}", "a.png", search_form("a.png", b"picture"))
    assert search.status == 0
    assert b"Connection refused" in search.body


def test_the_bare_loop_finds_what_the_service_finds(tmp_path: Path) -> None:
    save_clip(tmp_path / "model")
    collection = make_collection(tmp_path / "collection", str(tmp_path / "model"), 300)
    bare = Bare(collection.location, str(tmp_path / "model"))
    pictures = [plan_exhibit(number).data() for number in range(3)]
    together = bare.search(pictures)
    alone = [bare.search([picture]) for picture in pictures]
    np.testing.assert_allclose(together.scores, np.concatenate([hits.scores for hits in alone]), atol=1e-5)

    searcher = Searcher.open(collection)
    row_of = searcher.segments.ids(together.positions[0])
    nearest = searcher.search(bare.embed(pictures[:1]), 10)[0]
    assert list(row_of) == [match.image_id for match in nearest]
    with TestClient(bare_app(bare)) as client:
        answer = client.post("/search", files={"image": pictures[0]}).json()
    assert answer["positions"] == alone[0].positions[0].tolist()
    np.testing.assert_allclose(answer["scores"], together.scores[0], atol=1e-5)
