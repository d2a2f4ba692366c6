"""Request ids, metrics, log lines and readiness of a server, and the dashboard of its metrics."""

import asyncio
import base64
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
from fastapi.testclient import TestClient
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from api.access.keys import KeyRing, KeyScope, add_key
from api.http.app import create_app
from api.observe.metrics import Metrics, merge_replicas
from api.problems import PROBLEMS
from api.search.service import SearchService
from api.settings import Access
from embedder.errors import FetchError
from index.collection import Collection
from tests.support.collections.small_collection import PLAIN, RecordingFetcher, add_pictures, followed_service, png
from tests.support.fake_embedder import FakeEmbedder
from tests.support.paths import ROOT
from tests.support.servers.clients import search_star

DASHBOARD = ROOT / "deploy" / "monitoring" / "service-dashboard.json"
RED = PLAIN["red.png"]
SECRET_URL = "https://pictures.example/cat.png?signature=abc"
BROKEN_URL = "https://pictures.example/broken"


class Host(RecordingFetcher):
    def fetch(self, uri: str) -> bytes:
        if uri == BROKEN_URL:
            raise RuntimeError("https://me:secret@host/x.png?signature=abc cannot be had")
        if uri not in self.files:
            raise FetchError("http_404", f"{uri}: the server answered 404, expected 200")
        return super().fetch(uri)


@pytest.fixture
def service(collection: Collection) -> SearchService:
    pages = Host({SECRET_URL: RED, "https://pictures.example/page": b"<html>"})
    return followed_service(Path(collection.location), queries=pages)


def broken(client: TestClient, **options: Any) -> Any:
    """The answer to a request that fails because of a defect."""
    return client.post("/search", json={"url": BROKEN_URL}, **options)


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def samples(exposition: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(exposition) for sample in family.samples]


def measured(client: TestClient, name: str) -> dict[tuple[str, ...], float]:
    """The samples of this metric: label values → value."""
    exposition = client.get("/metrics").text
    return {tuple(sample.labels.values()): sample.value for sample in samples(exposition) if sample.name == name}


def grow(collection: Collection, name: str) -> None:
    add_pictures(collection, {name: png((5 * len(collection.runs()), 99, 50))}, FakeEmbedder())


# Request ids


def test_a_valid_request_id_is_kept_and_an_invalid_one_replaced(client: TestClient, log: io.StringIO) -> None:
    for request_id in ("a", "0af7651916cd43dd8448eb211c80319c", "!" * 128, 'quo"ted~'):
        headers = {"X-Request-ID": request_id}
        answers = [client.get(path, headers=headers) for path in ("/index", "/image?id=gone", "/nowhere")]
        answers.append(broken(client, headers=headers))
        assert [each.status_code for each in answers] == [200, 404, 404, 500]
        assert [each.headers.get_list("x-request-id") for each in answers] == [[request_id]] * 4
        assert {line["request_id"] for line in lines(log)[-4:]} == {request_id}
    for raw in (b"", b"!" * 129, b"two words", b"tab\there", b"\x7f", "ü".encode("latin-1")):
        answer = client.get("/index", headers=[(b"x-request-id", raw)])
        assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["x-request-id"])


# Requests


def test_requests_are_counted_by_template_and_status_and_problems_by_type_from_zero(client: TestClient) -> None:
    for id in ("red.png", "blue.png", "gone", "away"):
        client.get("/image", params={"id": id})
    for path in ("/nowhere", "/web/main.js", "/openapi.json"):
        client.get(path)
    broken(client)
    client.post("/image")
    client.request("BREW", "/image")
    assert measured(client, "likeness_request_duration_seconds_count") == {
        ("GET", "/image", "200"): 2,
        ("GET", "/image", "404"): 2,
        ("GET", "none", "404"): 1,
        ("POST", "/search", "500"): 1,
        ("GET", "/web/{name}", "200"): 1,
        ("GET", "/openapi.json", "200"): 1,
        ("POST", "/image", "405"): 1,
        ("other", "/image", "405"): 1,
    }
    counted = {slug: number for (slug,), number in measured(client, "likeness_problems_total").items()}
    some = {"image-not-found": 2, "not-found": 1, "internal": 1, "method-not-allowed": 2}
    assert counted == dict.fromkeys(PROBLEMS, 0) | some


def test_metrics_are_prometheus_text_or_openmetrics(client: TestClient) -> None:
    plain = client.get("/metrics")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b"# TYPE likeness_request_duration_seconds histogram\n" in plain.content
    openmetrics = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert openmetrics.content.endswith(b"# EOF\n")
    odd = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=x.y"})
    assert odd.headers["content-type"] == plain.headers["content-type"]


def test_refused_requests_are_counted_and_keys_logged_by_name(
    service: SearchService, tmp_path: Path, log: io.StringIO
) -> None:
    key = add_key(tmp_path / "keys.json", "alice", KeyScope.search)
    access = Access(keys=KeyRing(str(tmp_path / "keys.json")))
    with TestClient(create_app(service, access=access)) as client:
        refused = search_star(client)
        assert (refused.status_code, len(refused.headers["x-request-id"])) == (401, 32)
        for path in ("/picture?id=a/b.png", "/picture?id=c.png", "/no-such-page", "/nor-this"):
            assert client.get(path).status_code == 401
        client.headers["X-API-Key"] = key
        search_star(client)
        assert measured(client, "likeness_request_duration_seconds_count") == {
            ("POST", "/search", "401"): 1,
            ("GET", "/picture", "401"): 2,
            ("GET", "none", "401"): 2,
            ("POST", "/search", "200"): 1,
        }
        assert measured(client, "likeness_problems_total")[("unauthorized",)] == 5
    first, *_, last = lines(log)
    assert (first["route"], first["problems"], "key" in first) == ("/search", ["unauthorized"], False)
    assert last["key"] == "alice"
    assert key not in log.getvalue()


# Searches


def test_a_search_by_url_is_seen_in_every_stage_and_is_one_json_line(client: TestClient, log: io.StringIO) -> None:
    hidden = json.dumps({"label": {"$ne": "secret-words"}})
    answer = client.post("/search", params={"filter": hidden}, json={"url": SECRET_URL, "k": 1})
    assert answer.status_code == 200, answer.text
    stages = measured(client, "likeness_stage_duration_seconds_count")
    assert stages == {("fetch",): 1, ("decode",): 1, ("embed",): 1, ("search",): 1}
    assert measured(client, "likeness_fetches_total") == {("ok",): 1}
    assert measured(client, "likeness_rejected_pictures_total") == {}
    [line] = lines(log)
    timing_ms = answer.json()["timing_ms"]
    assert datetime.fromisoformat(line.pop("time")).utcoffset() == timedelta(0)
    assert timing_ms.pop("total") <= line.pop("milliseconds")
    assert list(line["stages_ms"]) == ["fetch", "decode", "embed", "search"]
    assert line == {
        "level": "info",
        "logger": "api.requests",
        "message": "answered",
        "request_id": answer.headers["x-request-id"],
        "method": "POST",
        "route": "/search",
        "status": 200,
        "stages_ms": pytest.approx(timing_ms, abs=0.01),
        "index": "000001",
    }


def test_urls_and_pictures_that_fail_are_counted_by_reason_and_not_logged(client: TestClient, log: io.StringIO) -> None:
    client.post("/search", json={"url": "https://me:word@pictures.example/none?key=abc"})
    client.post("/search", json={"url": "https://pictures.example/page"})
    client.post("/search", files={"image": ("a.png", b"no picture")})
    assert measured(client, "likeness_fetches_total") == {("http_4xx",): 1, ("ok",): 1}
    assert measured(client, "likeness_rejected_pictures_total") == {("not_an_image",): 2}
    problems = measured(client, "likeness_problems_total")
    assert (problems[("url-not-usable",)], problems[("unusable-image",)]) == (1, 2)
    assert [line["problems"] for line in lines(log)] == [["url-not-usable"], ["unusable-image"], ["unusable-image"]]
    assert "pictures.example" not in log.getvalue()


def test_a_repeated_picture_is_a_cache_hit_and_not_embedded(client: TestClient) -> None:
    batches = measured(client, "likeness_embedding_batch_queries_count")[()]
    lookups = measured(client, "likeness_embedding_cache_lookups_total")
    for _ in range(3):
        client.post("/search", files={"image": ("a.png", RED)})
    after = measured(client, "likeness_embedding_cache_lookups_total")
    assert {name: after[name] - lookups[name] for name in after} == {("hit",): 2, ("miss",): 1}
    assert measured(client, "likeness_embedding_batch_queries_count")[()] == batches + 1
    assert measured(client, "likeness_embedding_queue_queries") == {(): 0}


def test_problems_within_a_batch_are_counted_and_its_stages_add_up(client: TestClient, log: io.StringIO) -> None:
    searches = [{"text": "star"}, {"text": ""}, {"nothing": 1}, {"image": base64.b64encode(b"no picture").decode()}]
    answer = client.post("/search/batch", json={"searches": [*searches, {"id": "red.png"}]})
    problems = measured(client, "likeness_problems_total")
    counted = {slug: number for (slug,), number in problems.items() if number}
    assert counted == {"invalid-request": 2, "unusable-image": 1}
    [line] = lines(log)
    assert (line["status"], line["problems"]) == (200, ["invalid-request", "unusable-image"])
    found = [result["ok"]["timing_ms"]["search"] for result in answer.json()["results"] if "ok" in result]
    assert (len(found), line["stages_ms"]["search"]) == (2, pytest.approx(sum(found), abs=0.01))


# Log lines


def test_queries_are_not_logged(client: TestClient, log: io.StringIO) -> None:
    picture = base64.b64encode(RED).decode()
    client.post("/search", json={"text": "private words"})
    client.post("/search", json={"image": picture, "filter": {"label": "private label"}})
    client.post("/search?text=private", json={"text": "", "private": "private"})
    client.get("/image?id=private.png")
    assert len(lines(log)) == 4
    assert "private" not in log.getvalue()
    assert picture[:20] not in log.getvalue()


def test_a_defect_is_logged_with_its_request_and_without_secrets(client: TestClient, log: io.StringIO) -> None:
    for path in ("/readyz", "/metrics"):  # probes that succeed are not logged
        assert client.get(path).status_code == 200
    broken(client, headers={"X-Request-ID": "r2"})
    client.post("/readyz")
    defect, answered, failed_probe = lines(log)
    assert (defect["level"], defect["request_id"]) == ("error", "r2")
    assert defect["exception"].endswith("RuntimeError: https://…@host/x.png?… cannot be had")
    assert (answered["status"], answered["problems"]) == (500, ["internal"])
    assert failed_probe["status"] == 405
    assert "secret" not in log.getvalue()


def test_text_lines_cannot_be_forged(client: TestClient, text_log: io.StringIO) -> None:
    search_star(client, headers={"X-Request-ID": "r3"})
    logging.getLogger("api").info("asked for %s", "a\n2026-11-21 INFO forged\x1b[31m")
    first, second = text_log.getvalue().splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO    answered request_id=r3 method=POST route=/search status=200 "
        r"milliseconds=[\d.]+ stages_ms=embed:[\d.]+,search:[\d.]+ index=000001",
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
from api.http.middleware.every_request import EveryRequestMiddleware

configure_logs("json")
app = FastAPI()
app.add_middleware(EveryRequestMiddleware, metrics=Metrics(), first="collection")
with running(app) as url:
    for _ in range(2):
        urllib.request.urlopen(url + "/openapi.json").read()
logging.getLogger("uvicorn.error").warning("a warning of uvicorn")
"""


def test_a_server_logs_one_line_per_request() -> None:
    done = subprocess.run([sys.executable, "-c", SERVER], capture_output=True, text=True, timeout=60, check=True)
    written = [json.loads(line) for line in done.stderr.splitlines()]
    request = ("api.requests", "/openapi.json")
    assert [(line["logger"], line.get("route")) for line in written] == [request, request, ("uvicorn.error", None)]
    assert done.stdout == ""


# The index


def test_metrics_follow_the_index_version(client: TestClient, service: SearchService, collection: Collection) -> None:
    for version, rows, swaps in (("000001", 3, 0), ("000002", 4, 1)):
        assert [set(labels) for labels in measured(client, "likeness_index_info")] == [{version, "fake"}]
        assert measured(client, "likeness_index_rows") == {(): rows}
        assert 0 <= measured(client, "likeness_index_age_seconds")[()] < 300
        assert measured(client, "likeness_index_swaps_total") == {("ok",): swaps, ("failed",): 0}
        assert measured(client, "likeness_index_behind") == {(): 0}
        grow(collection, f"after {version}")
        service.live.refresh()


def test_metrics_show_a_version_that_fails_to_open_and_the_server_stays_ready(
    client: TestClient, service: SearchService, collection: Collection
) -> None:
    grow(collection, "new.png")
    manifest = Path(collection.location) / "index" / "000002" / "manifest.json"
    whole = manifest.read_bytes()
    for data, swaps, behind, version in ((b"{}", 0, 1, "000001"), (whole, 1, 0, "000002")):
        manifest.write_bytes(data)
        service.live.refresh()
        assert measured(client, "likeness_index_swaps_total") == {("ok",): swaps, ("failed",): 1}
        assert measured(client, "likeness_index_behind") == {(): behind}
        assert client.get("/readyz").json() == {"status": "ready", "index": version}


# The dashboard


def test_the_dashboard_shows_every_metric_and_the_replica_of_unaggregated_ones(client: TestClient) -> None:
    families = text_string_to_metric_families(client.get("/metrics").text)
    ours = {family.name for family in families if re.fullmatch(r"likeness_\w+(?<!_created)", family.name)}
    dashboard = DASHBOARD.read_text()
    assert len(ours) > 10
    assert {name for name in ours if name not in dashboard} == set()
    targets = [target for panel in json.loads(dashboard)["panels"] for target in panel.get("targets", ())]
    aggregation = re.compile(r"(sum|max|count|histogram_quantile)\b")
    unaggregated = [target for target in targets if not aggregation.match(target["expr"])]
    assert len(unaggregated) == 3
    assert {target["legendFormat"] for target in unaggregated} == {"{{instance}} {{replica}}"}


def test_metrics_of_replicas_are_labelled_and_add_up() -> None:
    first, second = Metrics(), Metrics()
    first.count_request("POST", "/search", 200, 0.01)
    for _ in range(2):
        second.count_request("POST", "/search", 200, 0.3)

    async def gather() -> list[Metric]:
        counted = {"a": first.collect(), "b": second.collect()}
        return merge_replicas({name: pickle.loads(pickle.dumps(each)) for name, each in counted.items()})

    text = asyncio.run(Metrics(gather).exposition())[0].decode()
    found = samples(text)
    requests = [each for each in found if each.name == "likeness_request_duration_seconds_count"]
    assert {each.labels["replica"]: each.value for each in requests} == {"a": 1, "b": 2}
    quick = [each for each in found if each.name.endswith("_seconds_bucket") and each.labels["le"] == "0.1"]
    assert [each.value for each in quick if each.labels.get("route") == "/search"] == [1, 0]
    assert text.count("# TYPE likeness_request_duration_seconds histogram") == 1
    (scraped,) = [each for each in found if each.name == "likeness_scraped_replicas"]
    assert (scraped.value, scraped.labels) == (2, {})
    assert {each.labels.get("replica") for each in found if each is not scraped} == {"a", "b"}
