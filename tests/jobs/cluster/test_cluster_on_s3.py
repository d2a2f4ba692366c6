"""A cluster on an S3 server that fails writes, builds and serves the same as one machine in a folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from fastapi.testclient import TestClient
from ray import serve
from rich.console import Console

from api.build_service import build_service
from api.deployment.application import run
from api.http.app import create_app
from api.settings import ServeSettings
from benchmarks.common.servers import free_port
from index.collection import Collection
from jobs.cluster.session import ray_cluster
from jobs.spec import IndexBudget, JobSpec, Resources
from jobs.update import Update
from tests.support.cluster_nodes import CLUSTER_MARKS, NPU, Nodes, assert_rows_are_the_same, live
from tests.support.collections.s3_server import FAULTS, Bucket, FaultyServer
from tests.support.nights.failing_store import REQUEST_S, Source, watched
from tests.support.nights.reembed_nights import DEMO, Nights, query_form

pytestmark = CLUSTER_MARKS

COUNT, SEGMENT, SHARDS = 40, 10, 2
QUIET = Console(quiet=True)


@pytest.mark.long
# In the driver; to workers, which wait longer, a silent connection is broken.
@pytest.mark.usefixtures("short_timeouts")
def test_a_cluster_on_a_store_that_fails(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Nights(Path(), str(tmp_path / "here"))
    pictures = Source(tmp_path / "pictures")
    for number in range(COUNT):
        for source in (pictures, Source(bucket)):
            source.write(f"{number % 4}/{number}.bmp", number)
    here.night(DEMO, source=pictures.address)

    faults = (*FAULTS, "silent")
    server = FaultyServer(share=0.1, seed=2, faults=faults, page=7, pause_s=1.25 * REQUEST_S)
    location = f"s3://{bucket.name}/collection"
    with server.listening() as host, watched(bucket, bucket.address("collection")) as seen:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}")  # also for the nodes, which start now
        nodes = Nodes(1)
        try:
            job = JobSpec(
                source=Source(bucket).address,
                collection=location,
                model=DEMO,
                resources=Resources(address=nodes.address, actor_resources=NPU["resources"], block_size=SEGMENT),
                index=IndexBudget(segment_rows=SEGMENT),
            )
            assert Update(spec=job, console=QUIET).run().embedded == COUNT
            manifest = Collection.open(location).read_version("000001")
            assert [segment.ntotal for segment in manifest.segments] == [SEGMENT] * (COUNT // SEGMENT)
            assert_rows_are_the_same(live(Collection.open(location)), live(here.collection))
            with ray_cluster(nodes.address, verbose=False):
                settings = ServeSettings(collection=location, port=free_port(), shards=SHARDS, num_cpus=0.25)
                url = run(settings, blocking=False)
                assert_answers_are_the_same(url, copied(bucket, tmp_path / "copy"))
                serve.shutdown()  # type: ignore[no-untyped-call]
        finally:
            nodes.shutdown()
    assert seen["reads"] > 5
    assert seen["live 000001"] > 0
    assert sum(server.count[fault] for fault in faults) > 10, server.count
    assert bucket.unfinished_uploads() == []


def copied(bucket: Bucket, folder: Path) -> Collection:
    """Copy the collection of a bucket to a folder."""
    for key in bucket.keys("collection/"):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.client.get_object(Bucket=bucket.name, Key=key)["Body"].read())
    return Collection.open(str(folder / "collection"))


def assert_answers_are_the_same(url: str, whole: Collection) -> None:
    """Compare the answers of a server with those of the whole index in this process."""
    service = build_service(ServeSettings(collection=whole.location))
    embedding = live(whole)["embedding"][7].as_py()
    queries: list[dict[str, Any]] = [
        {"json": {"embedding": embedding, "k": COUNT}},
        {"json": {"embedding": embedding, "k": 5, "offset": 3, "filter": {"label": "2"}}},
        {"json": {"id": "3/7.bmp", "min_score": 0.1}},
        {"json": {"text": "a red circle", "k": 20}},
        {"files": query_form(5), "data": {"k": "10"}},
    ]
    with TestClient(create_app(service)) as client:
        for query in queries:
            answer = requests.post(f"{url}/search", **query, timeout=60)
            assert answer.status_code == 200, answer.text
            found, expected = answer.json(), client.post("/search", **query).json()
            assert [match["image_id"] for match in found["matches"]] == [m["image_id"] for m in expected["matches"]]
            # The model embeds in another process there, with other rounding.
            for figure, atol in (("score", 1e-5), ("percentile", 0.01)):
                mine, other = ([match.pop(figure) for match in said["matches"]] for said in (found, expected))
                np.testing.assert_allclose(np.array(mine, float), np.array(other, float), atol=atol)
            del found["timing_ms"], expected["timing_ms"]
            assert found == expected
            assert len(found["matches"]) > 0
