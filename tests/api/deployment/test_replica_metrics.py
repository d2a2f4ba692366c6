"""The metrics of several replicas as one answer."""

import asyncio
import pickle

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from api.observe.metrics import Metrics, merged


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
