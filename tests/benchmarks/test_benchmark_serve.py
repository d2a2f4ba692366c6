"""The arithmetic of the service's benchmark, its clients, and the bare loop that the service is compared with."""

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from rich.console import Console

from benchmarks.common.load import Load, ask, rate_of
from benchmarks.serve.__main__ import make_collection
from benchmarks.serve.bare import Bare, bare_app
from benchmarks.serve.report import ALONE, BATCHES, ENDPOINT, SERVE, Case, Loads, bars_of, figures_of, print_case
from index.collection import Collection
from index.search import Searcher
from jobs.demo.gallery import plan_exhibit
from tests.support.pictures.tiny_checkpoints import save_clip


def test_a_rate_counts_whole_turns_of_bursts() -> None:
    # Four clients in batches: one answer, then three together, every 2 s; the fifth batch was cut short.
    ends = [0.0, 1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 4.0, 5.0, 5.0, 5.0, 6.0]
    assert rate_of(ends, 4) == 2.0
    assert rate_of([0.0, 0.5, 1.0, 1.5], 1) == 2.0


class _Answers(BaseHTTPRequestHandler):
    """Answers after 10 ms, with `status`; notes how many it is asked at once."""

    protocol_version = "HTTP/1.1"
    status = 200
    ongoing: set[int]
    most: list[int]
    bodies: list[bytes]

    def do_POST(self) -> None:
        self.ongoing.add(threading.get_ident())
        self.most.append(len(self.ongoing))
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.01)
        self.ongoing.discard(threading.get_ident())
        self.send_response(self.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _answering(status: int) -> Iterator[tuple[int, type[_Answers]]]:
    handler = type("Handler", (_Answers,), {"status": status, "ongoing": set(), "most": [], "bodies": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, handler
        finally:
            server.shutdown()
            thread.join()


def test_clients_ask_at_once_and_for_every_picture_in_turn() -> None:
    pictures = [b"picture %d" % number for number in range(5)]
    with _answering(200) as (port, handler):
        answers = ask(port, pictures, clients=4, seconds=0.0, turns=5)
    assert len(answers.ends) == len(answers.latencies) == 20
    assert answers.ends == sorted(answers.ends)
    assert min(answers.latencies) >= 0.01
    assert max(handler.most) == 4
    assert 20 <= answers.asked == len(handler.bodies) <= 23
    for number, picture in enumerate(pictures):
        assert sum(picture in body for body in handler.bodies) in (4, 5), number
    assert answers.cpu_seconds > 0
    assert answers.seconds >= 5 * 0.01


def test_an_answer_that_is_no_success_ends_the_benchmark() -> None:
    with _answering(429) as (port, _), pytest.raises(RuntimeError, match=r"picture \d.*429"):
        ask(port, [b"picture"], clients=2, seconds=5.0, turns=1)


def _load(rate: float, ms: float) -> Load:
    return Load(latencies=[ms / 1e3] * 10, queries_per_second=rate, cpu_ms=3.0)


def test_bars_compare_ray_serve_with_what_does_the_same_without_it() -> None:
    demo: Loads = {
        (ALONE, 1): [_load(100, 10)],
        (BATCHES, 32): [_load(400, 0)],
        (ENDPOINT, 32): [_load(200, 100)],
        (SERVE, 1): [_load(40, 24)],
        (SERVE, 32): [_load(150, 200), _load(10, 900), _load(160, 200)],  # the median: one round was disturbed
    }
    vit = {**demo, (SERVE, 1): [_load(40, 26)]}
    bars = bars_of({Case(model="demo", rows=10): demo, Case(model="ViT-B/32", rows=10): vit})
    assert [(round(bar.value, 3), bar.bar, bar.ok) for bar in bars] == [
        (14.0, 15, True),
        (0.75, 0.7, True),
        (16.0, 15, False),
        (0.375, 0.9, False),
    ]


def test_tables_and_figures_say_each_contestant_s_speed() -> None:
    case = Case(model="demo", rows=10_000)
    batches = Load(latencies=[], queries_per_second=400, cpu_ms=5.0)
    loads: Loads = {(SERVE, 8): [_load(200, 40), _load(210, 60)], (BATCHES, 32): [batches]}
    figures = figures_of({case: loads})["demo, 10,000 rows"]
    assert isinstance(figures, dict)
    assert figures[SERVE]["8"] | {"asking": 0} == {
        **{"p50_ms": 50.0, "p95_ms": 60.0, "p99_ms": 60.0, "queries_per_second": 205, "cpu_ms": 3.0},
        "asking": 0,
    }
    out = io.StringIO()
    print_case(case, loads, Console(file=out, width=80))
    assert "demo, 10,000 rows" in out.getvalue()
    assert "nan" not in out.getvalue()


def test_the_bare_loop_finds_what_the_service_finds(tmp_path: Path) -> None:
    save_clip(tmp_path / "model")
    location = make_collection(tmp_path / "collection", str(tmp_path / "model"), 300)
    bare = Bare(location, str(tmp_path / "model"))
    pictures = [plan_exhibit(number).data() for number in range(3)]
    scores, positions = bare.search(pictures)
    alone = [bare.search([picture]) for picture in pictures]
    np.testing.assert_allclose(scores, np.concatenate([scores for scores, _ in alone]), atol=1e-5)

    searcher = Searcher.open(Collection.open(location))
    row_of = searcher.segments.ids(positions[0])
    nearest = searcher.search(bare.embed(pictures[:1]), 10)[0]
    assert list(row_of) == [match.image_id for match in nearest]
    with TestClient(bare_app(bare)) as client:
        answer = client.post("/search", files={"image": pictures[0]}).json()
    assert answer["positions"] == alone[0][1][0].tolist()
    np.testing.assert_allclose(answer["scores"], scores[0], atol=1e-5)
