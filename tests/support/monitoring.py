"""The files in deploy/monitoring: their expressions, and the metrics that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import yaml
from prometheus_client.parser import text_string_to_metric_families

from api.http.routes.metrics import register_engine_metrics
from api.observe.log import RequestRecord
from api.observe.metrics import Metrics
from api.search.collections import Collections
from api.settings import RequestLimits
from embedder.fake import FakeEmbedder
from jobs.schedule.history import HistoryEntry
from jobs.schedule.metrics_file import write_metrics
from tests.support.collections.small_collection import PLAIN, fake_service, make_collection
from tests.support.paths import ROOT

FOLDER = ROOT / "deploy" / "monitoring"
DASHBOARDS = ["service-dashboard.json", "jobs-dashboard.json"]
COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"


def dashboard(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return content


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]


def substituted(expression: str) -> str:
    """An expression as Grafana sends it, with all values of variables selected."""
    return re.sub(r'"\$\w+"', '".*"', expression.replace("$__rate_interval", "5m"))


def expressions(name: str) -> list[str]:
    """The expressions of a dashboard, or of the alerts."""
    if name.endswith(".yml"):
        groups = yaml.safe_load((FOLDER / name).read_text())["groups"]
        return [rule["expr"] for group in groups for rule in group["rules"]]
    found = [target["expr"] for panel in panels(name) for target in panel["targets"]]
    found += [each["expr"] for each in dashboard(name)["annotations"]["list"]]
    choices = [each["definition"] for each in dashboard(name)["templating"]["list"] if each["type"] == "query"]
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
