"""Jobs on a cluster that has no node with the resource yet: its autoscaler adds them, or the job ends and says why."""

import io
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from embedder.models.checkpoint import DEMO_MODEL
from index.collection import Collection
from jobs.demo.gallery import Gallery, make_gallery
from jobs.embedding.report import Report
from jobs.errors import JobError
from jobs.spec import JobSpec, Resources
from jobs.update import Update
from tests.support.growing_cluster import growing_cluster

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(1800)]

COUNT, BROKEN = 150, 20
NPU: dict[str, dict[str, float]] = {"npu": {"CPU": 2, "npu": 1, "memory": 5 * 2**30}}


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    return make_gallery(tmp_path_factory.mktemp("pictures"), count=COUNT, broken=BROKEN)


def embed(gallery: Gallery, location: Path, resources: Resources) -> tuple[Report, str]:
    """The report of a job, and what it printed."""
    spec = JobSpec(
        source=str(gallery.folder),
        collection=str(location),
        model=str(DEMO_MODEL),
        resources=resources,
        max_reject_rate=0.5,
    )
    console = Console(record=True, file=io.StringIO(), width=200)
    return Update(spec=spec, console=console, index=False).run(), console.export_text()


@pytest.mark.parametrize("version", [2, 1])
def test_a_job_waits_for_nodes_and_names_those_that_never_come(gallery: Gallery, tmp_path: Path, version: int) -> None:
    def asking(device: str, wait: str | None) -> Resources:
        return Resources.model_validate(
            {"address": address, "actors": "1:2", "actor_resources": {device: 1}, "block_size": 16}
            | ({"wait_for_nodes": wait} if wait else {})
        )

    with growing_cluster(tmp_path, NPU, max_nodes=2, version=version) as address:
        with pytest.raises(JobError, match=r"needs 1 CPU, 1 npu, .* wait with --wait-for-nodes 10m"):
            embed(gallery, tmp_path / "at once", asking("npu", None))
        report, said = embed(gallery, tmp_path / "c", asking("npu", "5m"))
        with pytest.raises(JobError, match=r"nodes within 5 s: an actor needs 1 tpu, but no node"):
            embed(gallery, tmp_path / "never", asking("tpu", "5s"))
    assert "waiting up to 300 s for nodes" in said
    assert (report.embedded, report.rejected, report.failed) == (COUNT - BROKEN, BROKEN - 1, 1)
    collection = Collection.open(str(tmp_path / "c"))
    assert sum(file.rows for run in collection.runs() for file in collection.files_of(run)) == COUNT
    ids = [*(each.image_id for each in gallery.exhibits), *gallery.broken]
    assert Counter(collection.live_rows()["image_id"].to_pylist()) == dict.fromkeys(ids, 1)
