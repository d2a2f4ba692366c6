"""deploy/monitoring with Debian's Prometheus: its own checks, and a real Prometheus that scrapes."""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from api.http.app import create_app
from api.local import running
from benchmarks.common.servers import free_port
from benchmarks.common.waiting import eventually
from embedder.fake import FakeEmbedder
from tests.support.collections.small_collection import PLAIN, fake_service, make_collection
from tests.support.monitoring import (
    COMPOSE,
    DASHBOARDS,
    FOLDER,
    expressions,
    job_metrics,
    metrics_in,
    panels,
    service_metrics,
    substituted,
)
from tests.support.paths import ROOT


def find_program(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        missing = f"needs {program}: `apt-get install prometheus prometheus-node-exporter`, as .ci/run does"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture
def promtool() -> str:
    return find_program("promtool")


def run_check(*command: str) -> str:
    """Run a check, which must pass; returns both streams, because promtool prints findings to either."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_prometheus_accepts_its_configuration_and_the_alerts(promtool: str) -> None:
    output = run_check(promtool, "check", "config", "--lint-fatal", str(FOLDER / "prometheus.yml"))
    assert f"{len(expressions('alerts.yml'))} rules found" in output


def test_alerts_fire_only_when_they_should(promtool: str) -> None:
    run_check(promtool, "test", "rules", str(FOLDER / "alerts-test.yml"))
    tests = yaml.safe_load((FOLDER / "alerts-test.yml").read_text())["tests"]
    cases = {(case["alertname"], "exp_alerts" in case) for test in tests for case in test["alert_rule_test"]}
    [group] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    assert cases == {(rule["alert"], fires) for rule in group["rules"] for fires in (True, False)}


def test_prometheus_accepts_the_configurations_in_the_pages(tmp_path: Path, promtool: str) -> None:
    pages = [page.read_text() for page in sorted((ROOT / "deploy").rglob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"(?ms)^```yaml\n(scrape_configs:.*?)^```", page)]
    assert len(blocks) == 2
    for block in blocks:
        # Debian builds Prometheus without service discovery for Kubernetes.
        text = block.replace("kubernetes_sd_configs: [{role: pod}]", "static_configs: []")
        (tmp_path / "prometheus.yml").write_text(text)
        run_check(promtool, "check", "config", "--syntax-only", str(tmp_path / "prometheus.yml"))


def api(prometheus: str, path: str, **query: str) -> Any:
    return requests.get(f"{prometheus}/api/v1/{path}", query, timeout=10).json()["data"]


def await_scrapes(prometheus: str, times: int) -> None:
    """Wait until Prometheus has scraped the server and the job's metrics `times` times."""

    def scraped() -> bool:
        with contextlib.suppress(OSError):  # includes the errors of requests
            up = api(prometheus, "query", query='sum_over_time(up{job=~"likeness.*"}[1h])')["result"]
            return len(up) == 2 and all(int(each["value"][1]) >= times for each in up)
        return False

    eventually(scraped, f"Prometheus has scraped both {times} times", 60)


@contextlib.contextmanager
def started(program: str, *options: str) -> Iterator[str]:
    """Run a program during the block; yields its address."""
    address = f"127.0.0.1:{free_port()}"
    with subprocess.Popen([program, *options, f"--web.listen-address={address}"]) as process:
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


@contextlib.contextmanager
def targets(folder: Path) -> Iterator[dict[str, str]]:
    """Run a server, and node_exporter with a job's metrics, as compose does; yields address in prometheus.yml → URL."""
    queries = {"http://a.example/1": PLAIN["red.png"], "http://a.example/2": b"text"}
    service = fake_service(make_collection(folder / "collection", PLAIN, FakeEmbedder()), queries=queries)
    job_metrics(folder)
    options = yaml.safe_load(COMPOSE.read_text())["services"]["job-metrics"]["command"]
    options = [option.replace("=/metrics", f"={folder}") for option in options]
    exporter = started(find_program("prometheus-node-exporter"), *options)
    with running(create_app(service)) as server, exporter as metrics:
        yield {"ray:8000": server, "job-metrics:9100": metrics, "ray:8080": "http://127.0.0.1:9"}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Prometheus with our files, except for addresses and intervals, while the server gets requests."""
    program, folder = find_program("prometheus"), tmp_path_factory.mktemp("prometheus")
    config = (FOLDER / "prometheus.yml").read_text().replace("15s", "1s, evaluation_interval: 1s")
    with targets(folder) as servers:
        for name, url in servers.items():
            config = config.replace(name, url.removeprefix("http://"))
        (folder / "prometheus.yml").write_text(config)
        shutil.copy(FOLDER / "alerts.yml", folder)
        files = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        with started(program, *files) as address:
            # Rates need series that exist before the requests.
            for times in (1, 3):
                await_scrapes(address, times)
                urls = [{"url": f"http://a.example/{name}"} for name in (1, 2, 3)]
                for query in [{"text": f"a star {times}"}] * 2 + urls:
                    requests.post(f"{servers['ray:8000']}/search", json=query, timeout=20)
            await_scrapes(address, 5)
            yield address


@pytest.mark.slow
def test_panels_have_figures(prometheus: str, tmp_path: Path) -> None:
    """Panels of the server and of finished jobs."""
    known = {*service_metrics(tmp_path), *job_metrics(tmp_path)}
    queries, empty = 0, set()
    for panel in [panel for name in DASHBOARDS for panel in panels(name)]:
        for expression in [substituted(target["expr"]) for target in panel["targets"]]:
            if {metric for metric, _ in metrics_in(expression)} <= known:
                queries += 1
                series = api(prometheus, "query", query=expression)["result"]
                if not series or any(each["value"][1] == "NaN" for each in series):
                    empty.add(panel["title"])
    assert queries > 25
    assert empty == {"Shards that did not answer"}  # there are none


def test_no_alert_fires_without_a_problem(prometheus: str) -> None:
    [group] = api(prometheus, "rules")["groups"]
    assert [rule["health"] for rule in group["rules"]] == ["ok"] * len(expressions("alerts.yml"))
    assert [rule["name"] for rule in group["rules"] if rule["state"] == "firing"] == []
