"""The metrics of several replicas as one answer: a scrape through Ray Serve's proxy reaches any one of them."""

from collections.abc import Iterable, Mapping

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily


def merged(by_replica: Mapping[str, Iterable[Metric]]) -> list[Metric]:
    """Each replica's samples, with a label `replica`, so that sums are right no matter which replica answers.

    `likeness_scraped_replicas` is the number of these replicas.
    """
    families: dict[str, Metric] = {}
    for replica, metrics in by_replica.items():
        for metric in metrics:
            family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            family.samples += [
                sample._replace(labels={**sample.labels, "replica": replica}) for sample in metric.samples
            ]
    scraped = GaugeMetricFamily("likeness_scraped_replicas", "Replicas whose metrics these are.", len(by_replica))
    return [*families.values(), scraped]
