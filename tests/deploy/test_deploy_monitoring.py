"""The files of Prometheus and Grafana name metrics, labels and files that exist.

`test_deploy_prometheus.py` runs Prometheus with them; `tests/api/middleware/test_telemetry.py` has more on the
dashboard of the service.
"""

import ast
import inspect
import json
import re
from itertools import product
from pathlib import Path

import pytest
import yaml
from ray.dashboard.modules.metrics import dashboards

from jobs.embedding import worker_metrics
from tests.support.monitoring import (
    COMPOSE,
    DASHBOARDS,
    FOLDER,
    dashboard,
    expressions,
    job_metrics,
    metrics_in,
    panels,
    service_metrics,
)

# Labels of every scraped series.
TARGET_LABELS = {"job", "instance"}


def running_job_metrics() -> dict[str, set[str]]:
    """The metrics declared in `jobs.embedding.worker_metrics`, with the names that Ray gives them."""
    metrics = {}
    for call in ast.walk(ast.parse(inspect.getsource(worker_metrics))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("Counter", "Gauge"):
            name = ast.literal_eval(call.args[0])
            tags = next((ast.literal_eval(each.value) for each in call.keywords if each.arg == "tag_keys"), ())
            metrics[f"ray_{name}{'_total' if call.func.id == 'Counter' else ''}"] = set(tags)
    return metrics


def ray_dashboards() -> str:
    """The source of Ray's own dashboards, which show the metrics that Ray exports."""
    return "".join(path.read_text() for path in Path(dashboards.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("name", [*DASHBOARDS, "alerts.yml"])
def test_expressions_name_existing_metrics_and_labels(name: str, tmp_path: Path) -> None:
    known = service_metrics(tmp_path) | job_metrics(tmp_path) | running_job_metrics() | {"up": set()}
    source = ray_dashboards()
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
    content = dashboard(name)
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
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    targets = {each["job_name"]: each["static_configs"][0]["targets"][0] for each in config["scrape_configs"]}
    assert targets == {"likeness": "ray:8000", "ray": "ray:8080", "likeness-jobs": "job-metrics:9100"}
    assert {target.partition(":")[0] for target in targets.values()} <= set(services)
    assert "--metrics-export-port=8080" in services["ray"]["command"]
    volumes = [volume.split(":") for name in ("prometheus", "grafana") for volume in services[name]["volumes"]]
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
