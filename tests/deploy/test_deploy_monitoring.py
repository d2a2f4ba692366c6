"""The files of Prometheus and Grafana name metrics, labels and files that exist; Debian's Prometheus works with them.

`tests/api/middleware/test_telemetry.py` has more on the dashboard of the service.
"""

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from ray.dashboard.modules.metrics import dashboards

from api.http.routes.metrics import EngineMetrics
from api.observe.log import RequestRecord
from api.observe.metrics import Metrics
from api.search.collections import Collections
from jobs.embedding import on_ray
from jobs.schedule.history import HistoryEntry
from jobs.schedule.metrics_file import write_metrics
from tests.support.collections.small_collection import PLAIN, fake_service, make_collection
from tests.support.fake_embedder import FakeEmbedder
from tests.support.paths import DEPLOY

FOLDER = DEPLOY / "monitoring"
DASHBOARDS = {
    name: json.loads((FOLDER / name).read_text()) for name in ("service-dashboard.json", "jobs-dashboard.json")
}
SERVICES: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
RULES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
TARGET_LABELS = {"job", "instance"}
"""Labels of every scraped series."""


def substituted(expression: str) -> str:
    """An expression as Grafana sends it, with all values of variables selected."""
    return re.sub(r'"\$\w+"', '".*"', expression.replace("$__rate_interval", "5m"))


def expressions(name: str) -> list[str]:
    """The expressions of a dashboard, or of the alerts."""
    if name == "alerts.yml":
        return [rule["expr"] for rule in RULES]
    found = [target["expr"] for panel in DASHBOARDS[name]["panels"] for target in panel.get("targets", ())]
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
    metrics.register(EngineMetrics(Collections.of(fake_service(searcher)), show_locations=True))
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
    """The metrics declared in `jobs.embedding.on_ray`, with the names that Ray gives them."""
    metrics = {}
    for call in ast.walk(ast.parse(inspect.getsource(on_ray))):
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


# By Prometheus's own tool


def promtool(*arguments: str) -> str:
    """Run a check, which must pass; returns both streams, because promtool prints findings to either."""
    if shutil.which("promtool") is None:
        missing = "needs promtool: `apt-get install prometheus`, as .ci/run does"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    command = ["promtool", *arguments]
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
