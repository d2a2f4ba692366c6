"""What Prometheus, as Debian packages it, makes of deploy/monitoring: its own checks, and a real one that scrapes."""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from api.http.app import create_app
from api.local import running
from benchmarks.common.servers import free_port
from embedder.fake import FakeEmbedder
from tests.deploy.test_deploy_monitoring import (
    COMPOSE,
    DASHBOARDS,
    FOLDER,
    asked,
    expressions,
    of_jobs,
    of_the_service,
    panels,
    sent,
)
from tests.support.collections.small_collection import PLAIN, fake_service, make_collection
from tests.support.paths import ROOT


def of_debian(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        missing = f"needs {program}: `apt-get install prometheus prometheus-node-exporter`, as .ci/run does"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture
def promtool() -> str:
    return of_debian("promtool")


def passes(*command: str) -> str:
    """What it says; promtool says what it finds on either stream."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_prometheus_takes_its_configuration_and_the_alerts(promtool: str) -> None:
    said = passes(promtool, "check", "config", "--lint-fatal", str(FOLDER / "prometheus.yml"))
    assert f"{len(expressions('alerts.yml'))} rules found" in said


def test_alerts_fire_when_they_should_and_not_else(promtool: str) -> None:
    passes(promtool, "test", "rules", str(FOLDER / "alerts-test.yml"))
    tests = yaml.safe_load((FOLDER / "alerts-test.yml").read_text())["tests"]
    cases = {(case["alertname"], "exp_alerts" in case) for test in tests for case in test["alert_rule_test"]}
    [group] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    assert cases == {(rule["alert"], fires) for rule in group["rules"] for fires in (True, False)}


def test_prometheus_takes_the_configurations_of_the_pages(tmp_path: Path, promtool: str) -> None:
    pages = [page.read_text() for page in sorted((ROOT / "deploy").rglob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"(?ms)^```yaml\n(scrape_configs:.*?)^```", page)]
    assert len(blocks) == 2
    for block in blocks:
        # Debian builds Prometheus without the discovery of Kubernetes.
        text = block.replace("kubernetes_sd_configs: [{role: pod}]", "static_configs: []")
        (tmp_path / "prometheus.yml").write_text(text)
        passes(promtool, "check", "config", "--syntax-only", str(tmp_path / "prometheus.yml"))


# A real one


def api(prometheus: str, path: str, **query: str) -> Any:
    return requests.get(f"{prometheus}/api/v1/{path}", query, timeout=10).json()["data"]


def scraped(prometheus: str, times: int) -> None:
    """Waits until it has scraped the server and the job's metrics so often."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # requests' own errors among them
            up = api(prometheus, "query", query='sum_over_time(up{job=~"likeness.*"}[1h])')["result"]
            if len(up) == 2 and all(int(each["value"][1]) >= times for each in up):
                return
        time.sleep(0.2)
    pytest.fail(f"Prometheus did not scrape both {times} times within a minute")


@contextlib.contextmanager
def started(program: str, *options: str) -> Iterator[str]:
    """The address of a program that listens for as long as the block lasts."""
    address = f"127.0.0.1:{free_port()}"
    with subprocess.Popen([program, *options, f"--web.listen-address={address}"]) as process:
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


@contextlib.contextmanager
def targets(folder: Path) -> Iterator[dict[str, str]]:
    """Address in prometheus.yml → a server, and node_exporter with what a job left, started as compose does."""
    queries = {"http://a.example/1": PLAIN["red.png"], "http://a.example/2": b"text"}
    service = fake_service(make_collection(folder / "collection", PLAIN, FakeEmbedder()), queries=queries)
    of_jobs(folder)
    options = yaml.safe_load(COMPOSE.read_text())["services"]["job-metrics"]["command"]
    options = [option.replace("=/metrics", f"={folder}") for option in options]
    exporter = started(of_debian("prometheus-node-exporter"), *options)
    with running(create_app(service)) as server, exporter as metrics:
        yield {"ray:8000": server, "job-metrics:9100": metrics, "ray:8080": "http://127.0.0.1:9"}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With our files, but for addresses and pace; the server is asked things meanwhile."""
    program, folder = of_debian("prometheus"), tmp_path_factory.mktemp("prometheus")
    config = (FOLDER / "prometheus.yml").read_text().replace("15s", "1s, evaluation_interval: 1s")
    with targets(folder) as servers:
        for named, here in servers.items():
            config = config.replace(named, here.removeprefix("http://"))
        (folder / "prometheus.yml").write_text(config)
        shutil.copy(FOLDER / "alerts.yml", folder)
        files = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        with started(program, *files) as address:
            # Rates are of series that have begun before.
            for times in (1, 3):
                scraped(address, times)
                urls = [{"url": f"http://a.example/{name}"} for name in (1, 2, 3)]
                for query in [{"text": f"a star {times}"}] * 2 + urls:
                    requests.post(f"{servers['ray:8000']}/search", json=query, timeout=20)
            scraped(address, 5)
            yield address


@pytest.mark.slow
def test_panels_have_figures(prometheus: str, tmp_path: Path) -> None:
    """Those of the server and of jobs that have ended."""
    known = {*of_the_service(tmp_path), *of_jobs(tmp_path)}
    asks, without = 0, set()
    for panel in [panel for name in DASHBOARDS for panel in panels(name)]:
        for expression in [sent(target["expr"]) for target in panel["targets"]]:
            if {metric for metric, _ in asked(expression)} <= known:
                asks += 1
                found = api(prometheus, "query", query=expression)["result"]
                if not found or any(each["value"][1] == "NaN" for each in found):
                    without.add(panel["title"])
    assert asks > 25
    assert without == {"Shards that did not answer"}  # there are none


def test_no_alert_fires_where_all_is_well(prometheus: str) -> None:
    [group] = api(prometheus, "rules")["groups"]
    assert [rule["health"] for rule in group["rules"]] == ["ok"] * len(expressions("alerts.yml"))
    assert [rule["name"] for rule in group["rules"] if rule["state"] == "firing"] == []
