"""The files of Prometheus and Grafana name metrics, labels and files that exist; Debian's Prometheus works with them.

`tests/api/middleware/test_telemetry.py` has more on the dashboard of the service.
"""

import ast
import contextlib
import inspect
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import requests
import yaml
from prometheus_client.parser import text_string_to_metric_families
from ray.dashboard.modules.metrics import dashboards

from api.http.app import create_app
from api.http.routes.metrics import register_engine_metrics
from api.local import running
from api.observe.log import RequestRecord
from api.observe.metrics import Metrics
from api.search.collections import Collections
from api.settings import RequestLimits
from benchmarks.common.servers import free_port
from benchmarks.common.waiting import eventually
from embedder.fake import FakeEmbedder
from jobs.embedding import worker_metrics
from jobs.schedule.history import HistoryEntry
from jobs.schedule.metrics_file import write_metrics
from tests.support.collections.small_collection import PLAIN, fake_service, make_collection
from tests.support.paths import DEPLOY

FOLDER = DEPLOY / "monitoring"
DASHBOARDS = {
    name: json.loads((FOLDER / name).read_text()) for name in ("service-dashboard.json", "jobs-dashboard.json")
}
SERVICES: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
RULES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
TARGET_LABELS = {"job", "instance"}
"""Labels of every scraped series."""


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row"]


def substituted(expression: str) -> str:
    """An expression as Grafana sends it, with all values of variables selected."""
    return re.sub(r'"\$\w+"', '".*"', expression.replace("$__rate_interval", "5m"))


def expressions(name: str) -> list[str]:
    """The expressions of a dashboard, or of the alerts."""
    if name == "alerts.yml":
        return [rule["expr"] for rule in RULES]
    found = [target["expr"] for panel in panels(name) for target in panel["targets"]]
    found += [each["expr"] for each in DASHBOARDS[name]["annotations"]["list"]]
    choices = [each["definition"] for each in DASHBOARDS[name]["templating"]["list"] if each["type"] == "query"]
    found += [expression for each in choices for expression in re.findall(r"^label_values\((.+), \w+\)$", each)]
    return [substituted(expression) for expression in found]


def subexpressions(node: Any) -> Iterator[Any]:
    """An expression and all expressions in it."""
    yield node
    for name in ("lhs", "rhs", "expr", "param", "args", "vector_selector"):
        inner = getattr(node, name, None)
        for each in inner if isinstance(inner, list) else [inner]:
            if each is not None:
                yield from subexpressions(each)


def metrics_in(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric of an expression, with the labels that it is selected by or that the expression is grouped by."""
    tree = list(subexpressions(promql_parser.parse(expression)))
    sums = [node.modifier for node in tree if isinstance(node, promql_parser.AggregateExpr)]
    grouped = {label for modifier in sums if modifier is not None for label in modifier.labels}
    for node in tree:
        if isinstance(node, promql_parser.VectorSelector) and node.name is not None:
            yield node.name, grouped | {matcher.name for matcher in node.matchers.matchers}


def service_metrics(folder: Path) -> dict[str, set[str]]:
    metrics = Metrics()
    searcher = make_collection(folder / "served", PLAIN, FakeEmbedder())
    register_engine_metrics(Collections.of(fake_service(searcher)), metrics, RequestLimits())
    metrics.count_request("POST", "/search", 200, 0.1)
    outcomes = [("fetch", "ok"), ("decode", "not_an_image")]
    metrics.count_record(RequestRecord(request_id="", stages=[("embed", 0.1)], outcomes=outcomes, lost_shards=[0]))
    return {sample.name: set(sample.labels) for family in metrics.collect() for sample in family.samples}


def job_metrics(folder: Path) -> dict[str, set[str]]:
    """The metrics in `metrics_file` at the end of a run."""
    run = HistoryEntry.begin("/pictures", "/collection").end("succeeded")
    run = run.model_copy(update={"counts": {"added": 1}, "seconds": {"embed": 1.0}, "recall": 0.99})
    write_metrics(str(folder / "job.prom"), run, run)
    families = text_string_to_metric_families((folder / "job.prom").read_text())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def running_job_metrics() -> dict[str, set[str]]:
    """The metrics declared in `jobs.embedding.worker_metrics`, with the names that Ray gives them."""
    metrics = {}
    for call in ast.walk(ast.parse(inspect.getsource(worker_metrics))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("Counter", "Gauge"):
            name = ast.literal_eval(call.args[0])
            tags = next((ast.literal_eval(each.value) for each in call.keywords if each.arg == "tag_keys"), ())
            metrics[f"ray_{name}{'_total' if call.func.id == 'Counter' else ''}"] = set(tags)
    return metrics


@pytest.mark.parametrize("name", [*DASHBOARDS, "alerts.yml"])
def test_expressions_name_existing_metrics_and_labels(name: str, tmp_path: Path) -> None:
    known = service_metrics(tmp_path) | job_metrics(tmp_path) | running_job_metrics() | {"up": set()}
    # Ray's own dashboards show the metrics that Ray exports.
    source = "".join(path.read_text() for path in Path(dashboards.__path__[0]).glob("*.py"))
    for expression in expressions(name):
        for metric, labels in metrics_in(expression):
            if metric in known:
                assert labels - TARGET_LABELS <= known[metric], expression
            else:
                missing = {word for word in {metric, *labels - TARGET_LABELS} if not re.search(rf"\b{word}\b", source)}
                assert not missing, expression


def test_the_dashboard_of_jobs_shows_every_metric_of_jobs(tmp_path: Path) -> None:
    shown = {metric for expression in expressions("jobs-dashboard.json") for metric, _ in metrics_in(expression)}
    assert set(running_job_metrics()) | set(job_metrics(tmp_path)) <= shown


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_can_be_imported_by_grafana(name: str) -> None:
    content = DASHBOARDS[name]
    assert content["uid"] == {"service": "likeness", "jobs": "likeness-jobs"}[name.partition("-")[0]]
    assert content["templating"]["list"][0]["type"] == "datasource"
    ids = [panel["id"] for panel in content["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {"datasource"} | {each["name"] for each in content["templating"]["list"]}
    used = set(re.findall(r"\$\{?(?!__)(\w+)", json.dumps(content)))
    assert used <= variables
    cells = [
        (at["x"] + x, at["y"] + y)
        for at in (panel["gridPos"] for panel in content["panels"])
        for x, y in product(range(at["w"]), range(at["h"]))
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) == 23
    for panel in panels(name):
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        named = re.findall(r"{{(\w+)}}", " ".join(target["legendFormat"] for target in panel["targets"]))
        for target in panel["targets"]:
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            if grouped and named:
                assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(re.split(r",\s*", grouped[0]))


def test_configurations_of_prometheus_and_grafana_agree_with_compose() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    targets = {each["job_name"]: each["static_configs"][0]["targets"][0] for each in config["scrape_configs"]}
    assert targets == {"likeness": "ray:8000", "ray": "ray:8080", "likeness-jobs": "job-metrics:9100"}
    assert {target.partition(":")[0] for target in targets.values()} <= set(SERVICES)
    assert "--metrics-export-port=8080" in SERVICES["ray"]["command"]
    volumes = [volume.split(":") for name in ("prometheus", "grafana") for volume in SERVICES[name]["volumes"]]
    mounted = {target: source for source, target, *_ in volumes}
    # Prometheus looks for rule files next to its configuration.
    assert [Path(mounted[f"/etc/prometheus/{name}"]).name for name in config["rule_files"]] == ["alerts.yml"]
    [source] = yaml.safe_load((FOLDER / "grafana-datasource.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    [provider] = yaml.safe_load((FOLDER / "grafana-dashboards.yaml").read_text())["providers"]
    provided = {Path(source).name for path, source in mounted.items() if path.startswith(provider["options"]["path"])}
    assert provided == set(DASHBOARDS)
    # The alerts name the jobs that Prometheus scrapes.
    for expression in expressions("alerts.yml"):
        assert set(re.findall(r'job="([^"]+)"', expression)) <= set(targets)


# With Prometheus itself


def find_program(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        missing = f"needs {program}: `apt-get install prometheus prometheus-node-exporter`, as .ci/run does"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def promtool(*arguments: str) -> str:
    """Run a check, which must pass; returns both streams, because promtool prints findings to either."""
    command = [find_program("promtool"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_prometheus_accepts_its_configuration_and_the_alerts() -> None:
    output = promtool("check", "config", "--lint-fatal", str(FOLDER / "prometheus.yml"))
    assert f"{len(RULES)} rules found" in output


def test_alerts_fire_only_when_they_should() -> None:
    promtool("test", "rules", str(FOLDER / "alerts-test.yml"))
    tests = yaml.safe_load((FOLDER / "alerts-test.yml").read_text())["tests"]
    cases = {(case["alertname"], "exp_alerts" in case) for test in tests for case in test["alert_rule_test"]}
    assert cases == {(rule["alert"], fires) for rule in RULES for fires in (True, False)}


def test_prometheus_accepts_the_configurations_in_the_pages(tmp_path: Path) -> None:
    pages = [page.read_text() for page in sorted(DEPLOY.rglob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"(?ms)^```yaml\n(scrape_configs:.*?)^```", page)]
    assert len(blocks) == 2
    for block in blocks:
        # Debian builds Prometheus without service discovery for Kubernetes.
        text = block.replace("kubernetes_sd_configs: [{role: pod}]", "static_configs: []")
        (tmp_path / "prometheus.yml").write_text(text)
        promtool("check", "config", "--syntax-only", str(tmp_path / "prometheus.yml"))


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
    options = SERVICES["job-metrics"]["command"]
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
    assert [rule["health"] for rule in group["rules"]] == ["ok"] * len(RULES)
    assert [rule["name"] for rule in group["rules"] if rule["state"] == "firing"] == []
