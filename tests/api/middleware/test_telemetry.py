"""What a server says of itself: request ids, metrics, log lines, readiness, and the dashboard that draws them."""

import asyncio
import io
import json
import logging
import pickle
import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from fastapi.testclient import TestClient
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from api.errors import PROBLEMS, Problem
from api.http.middleware.telemetry import CatchAll, follow, install_telemetry
from api.http.problems import install_problems
from api.observe.log import notes
from api.observe.metrics import Metrics, merged
from api.settings import RequestLimits
from tests.support.paths import ROOT
from tests.support.servers.stub_service import stub_service

DASHBOARD = ROOT / "deploy" / "monitoring" / "service-dashboard.json"
Labels = dict[str, str]


def samples(metrics: Metrics) -> dict[str, list[tuple[Labels, float]]]:
    """Name of a sample → its labels and values, as Prometheus reads them."""
    found: dict[str, list[tuple[Labels, float]]] = {}
    text = asyncio.run(metrics.exposition())[0].decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def app(metrics: Metrics, tmp_path: Path) -> FastAPI:
    app = FastAPI()
    install_problems(app)
    app.add_middleware(CatchAll)

    @app.get("/items/{item_id:path}")
    async def item(item_id: str) -> dict[str, str]:
        if item_id == "gone":
            raise Problem("image-not-found", "no such item")
        notes().stages += [("search", 0.002), ("search", 0.0001)]
        notes().index = "000007"
        return {"id": item_id, "request": notes().request_id}

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("https://me:secret@host/x.png?signature=abc cannot be had")

    @app.get("/readyz")
    async def readyz() -> str:
        return "ready"

    (tmp_path / "page.css").write_text("body {}")
    app.mount("/web", StaticFiles(directory=tmp_path))
    install_telemetry(app, metrics)
    return app


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app)


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


# Request ids


@pytest.mark.parametrize("given", ["a", "0af7651916cd43dd8448eb211c80319c", "!" * 128, 'quo"ted~'])
def test_a_sane_request_id_is_kept(client: TestClient, log: io.StringIO, given: str) -> None:
    answer = client.get("/items/1", headers={"X-Request-ID": given})
    assert answer.headers.get_list("x-request-id") == [given]
    assert answer.json()["request"] == given
    assert lines(log)[0]["request_id"] == given


@pytest.mark.parametrize("given", ["", "!" * 129, "two words", "tab\there", "\x7f", "ü".encode("latin-1")])
def test_another_request_id_is_made(client: TestClient, given: str | bytes) -> None:
    raw = given.encode() if isinstance(given, str) else given
    answer = client.get("/items/1", headers=[(b"x-request-id", raw)])
    assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["x-request-id"])


@pytest.mark.parametrize("path", ["/items/gone", "/nowhere", "/broken"])
def test_problems_carry_the_request_id_too(client: TestClient, path: str) -> None:
    assert client.get(path, headers={"X-Request-ID": "mine"}).headers["x-request-id"] == "mine"


# Requests


def test_requests_are_counted_by_template_and_status(client: TestClient, metrics: Metrics) -> None:
    for path in ("/items/1", "/items/2/3", "/items/gone", "/nowhere", "/broken", "/web/page.css", "/openapi.json"):
        client.get(path)
    client.post("/items/1")
    client.request("BREW", "/items/1")
    counted = {
        (labels["method"], labels["route"], labels["status"]): number
        for labels, number in samples(metrics)["likeness_request_duration_seconds_count"]
    }
    assert counted == {
        ("GET", "/items/{item_id}", "200"): 2,
        ("GET", "/items/{item_id}", "404"): 1,
        ("GET", "none", "404"): 1,
        ("GET", "/broken", "500"): 1,
        ("GET", "/web/{path}", "200"): 1,
        ("GET", "/openapi.json", "200"): 1,
        ("POST", "/items/{item_id}", "405"): 1,
        ("other", "/items/{item_id}", "405"): 1,
    }


def test_problems_are_counted_by_type_from_zero(client: TestClient, metrics: Metrics) -> None:
    client.get("/items/gone")
    client.get("/items/gone")
    client.get("/broken")
    counted = {labels["type"]: number for labels, number in samples(metrics)["likeness_problems_total"]}
    assert counted == dict.fromkeys(PROBLEMS, 0) | {"image-not-found": 2, "internal": 1}


def test_metrics_are_prometheus_text_or_openmetrics(client: TestClient) -> None:
    plain = client.get("/metrics")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b"# TYPE likeness_request_duration_seconds histogram\n" in plain.content
    openmetrics = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert openmetrics.content.endswith(b"# EOF\n")


# Log lines


def test_a_request_is_one_json_line(client: TestClient, log: io.StringIO) -> None:
    client.get("/items/secret-path?text=secret-words", headers={"X-Request-ID": "r1"})
    [line] = lines(log)
    assert datetime.fromisoformat(line.pop("time")).utcoffset() == timedelta(0)
    assert 0 < line.pop("milliseconds") < 10_000
    assert line == {
        "level": "info",
        "logger": "api.requests",
        "message": "answered",
        "request_id": "r1",
        "method": "GET",
        "route": "/items/{item_id}",
        "status": 200,
        "stages_ms": {"search": 2.1},
        "index": "000007",
    }


def test_a_defect_is_logged_with_its_request_and_without_secrets(client: TestClient, log: io.StringIO) -> None:
    client.get("/broken", headers={"X-Request-ID": "r2"})
    defect, answered = lines(log)
    assert (defect["level"], defect["request_id"]) == ("error", "r2")
    assert defect["exception"].endswith("RuntimeError: https://…@host/x.png?… cannot be had")
    assert (answered["status"], answered["problems"]) == (500, ["internal"])
    assert "secret" not in log.getvalue()


def test_probes_that_succeed_are_not_logged(client: TestClient, log: io.StringIO) -> None:
    client.get("/readyz")
    client.get("/metrics")
    assert lines(log) == []
    client.post("/readyz")
    assert [line["status"] for line in lines(log)] == [405]


def test_text_lines_cannot_be_forged(client: TestClient, text_log: io.StringIO) -> None:
    client.get("/items/1", headers={"X-Request-ID": "r3"})
    logging.getLogger("api").info("asked for %s", "a\n2026-11-21 INFO forged\x1b[31m")
    first, second = text_log.getvalue().splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO    answered request_id=r3 method=GET route=/items/\{item_id\} status=200 "
        r"milliseconds=[\d.]+ stages_ms=search:2.1 index=000007",
        first,
    )
    assert second.endswith(r"INFO    asked for a\n2026-11-21 INFO forged\x1b[31m")


@pytest.mark.parametrize(
    ("written", "logged"),
    [
        ("http://a:b@h/x", "http://…@h/x"),
        ("http://a@b@h/x", "http://…@h/x"),
        ("s3://key:word@bucket/x", "s3://…@bucket/x"),
        ("see https://h/x.png?X-Amz-Signature=1&b=2, then", "see https://h/x.png?… then"),
        ("https://h/x#token=1", "https://h/x?…"),
        ("me@example.com asks: why?", "me@example.com asks: why?"),
    ],
)
def test_secrets_of_urls_are_not_logged(log: io.StringIO, written: str, logged: str) -> None:
    logging.getLogger("api").warning(written)
    assert lines(log)[0]["message"] == logged


SERVER = """
import logging
import urllib.request
from fastapi import FastAPI
from api.local import running
from api.observe.log import configure_logs
from api.observe.metrics import Metrics
from api.http.middleware.telemetry import CatchAll, follow, install_telemetry

configure_logs("json")
app = FastAPI()
install_telemetry(app, Metrics())
with running(app) as url:
    for _ in range(2):
        urllib.request.urlopen(url + "/openapi.json").read()
logging.getLogger("uvicorn.error").warning("what uvicorn says")
"""


def test_a_server_writes_one_line_a_request() -> None:
    done = subprocess.run([sys.executable, "-c", SERVER], capture_output=True, text=True, timeout=60, check=True)
    written = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["logger"], line.get("route")) for line in written] == [
        ("api.requests", "/openapi.json"),
        ("api.requests", "/openapi.json"),
        ("uvicorn.error", None),
    ]
    assert done.stdout == ""


# The dashboard


def test_the_dashboard_names_the_replica_of_what_it_does_not_add_up() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    targets = [target for panel in panels for target in panel.get("targets", ())]
    each = [target for target in targets if not re.match(r"(sum|max|count|histogram_quantile)\b", target["expr"])]
    assert len(each) == 3
    assert {target["legendFormat"] for target in each} == {"{{instance}} {{replica}}"}


def test_the_dashboard_draws_every_metric(metrics: Metrics) -> None:
    follow(stub_service(), metrics, RequestLimits())
    families = text_string_to_metric_families(asyncio.run(metrics.exposition())[0].decode())
    ours = {family.name for family in families if re.fullmatch(r"likeness_\w+(?<!_created)", family.name)}
    drawn = DASHBOARD.read_text()
    assert len(ours) > 10
    assert {name for name in ours if name not in drawn} == set()


def test_what_replicas_counted_is_told_apart_and_adds_up() -> None:
    first, second = Metrics(), Metrics()
    first.answered("POST", "/search", 200, 0.01)
    for _ in range(2):
        second.answered("POST", "/search", 200, 0.3)

    async def gather() -> list[Metric]:
        return merged(
            {name: pickle.loads(pickle.dumps(each.collect())) for name, each in (("a", first), ("b", second))}
        )

    text = asyncio.run(Metrics(gather).exposition())[0].decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    counted = {
        each.labels["replica"]: each.value for each in samples if each.name == "likeness_request_duration_seconds_count"
    }
    assert counted == {"a": 1, "b": 2}
    quick = [each for each in samples if each.name.endswith("_seconds_bucket") and each.labels["le"] == "0.1"]
    assert [each.value for each in quick if each.labels.get("route") == "/search"] == [1, 0]
    assert text.count("# TYPE likeness_request_duration_seconds histogram") == 1
    (scraped,) = [each for each in samples if each.name == "likeness_scraped_replicas"]
    assert (scraped.value, scraped.labels) == (2, {})
    assert {each.labels.get("replica") for each in samples if each is not scraped} == {"a", "b"}
