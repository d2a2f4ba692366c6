"""Jobs on Ray's multi-node test cluster: same rows as on one machine, on the requested nodes, whatever node is lost."""

import fcntl
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import ray
import requests
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families
from ray import cloudpickle
from rich.console import Console

from embedder.models.checkpoint import DEMO_MODEL
from embedder.protocol import Embedder
from index.builder.build_index import build_index, run_here
from index.builder.segment import SegmentJob
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import SegmentRecord
from jobs.cluster.pool import Pool
from jobs.cluster.session import ray_cluster
from jobs.demo.gallery import Gallery, make_gallery
from jobs.embedding.model_source import ModelSource
from jobs.embedding.placement import Place
from jobs.embedding.report import EmbedReport, Report
from jobs.errors import JobError
from jobs.indexing.on_ray import run_on_ray
from jobs.spec import JobSpec, Resources
from jobs.update import Update
from tests.support.cluster_nodes import CLUSTER_MARKS, Nodes, assert_rows_are_the_same, live
from tests.support.collections.hand_made import add_run, rows, unit_vectors
from tests.support.fake_embedder import FakeEmbedder
from tests.support.nights.fake_job import assert_gallery_is_embedded, embed

pytestmark = CLUSTER_MARKS

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # Ray's workers cannot import a test

COUNT, BROKEN, BLOCK = 300, 20, 16


def put_stale_packages(folder: Path) -> None:
    for name in ("embedder", "index", "jobs", "api"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise RuntimeError('another Likeness')\n")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes, two of them with a device. Their image has another Likeness."""
    stale = tmp_path_factory.mktemp("image")
    put_stale_packages(stale)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(stale), prepend=os.pathsep)
        nodes = Nodes(2)
    yield nodes
    nodes.shutdown()


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    return make_gallery(tmp_path_factory.mktemp("pictures"), count=COUNT, broken=BROKEN)


def note(log: str, line: str) -> None:
    with Path(log).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{line}\n")


def here() -> str:
    return str(ray.get_runtime_context().get_node_id())


@dataclass(frozen=True, kw_only=True)
class NotedModel(ModelSource):
    """Logs the node on which a model is loaded, and the path of the code."""

    log: str = ""

    def __call__(self) -> Embedder:
        if ray.is_initialized():
            import jobs

            note(self.log, f"{here()} {jobs.__file__}")
        return super().__call__()


class SlowEmbedder(FakeEmbedder):
    """Logs the node for each block that it embeds."""

    def __init__(self, log: str, seconds: float) -> None:
        super().__init__()
        self._log = log
        self._seconds = seconds

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        note(self._log, here())
        time.sleep(self._seconds * len(pixels))
        return super().embed_images(pixels)


@dataclass(frozen=True)
class Slow:
    """Makes an embedder in the actor that takes this long for each picture."""

    log: str
    seconds: float

    def __call__(self) -> Embedder:
        return SlowEmbedder(self.log, self.seconds)


class AfterRows:
    """Calls each function once the given number of rows is on disk."""

    def __init__(self, *then: tuple[int, Callable[[], None]]) -> None:
        self.then = list(then)

    def __call__(self, report: EmbedReport) -> None:
        if self.then and report.embedded + report.rejected >= self.then[0][0]:
            _, act = self.then.pop(0)
            act()


def test_rows_and_devices(three: Nodes, gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    put_stale_packages(elsewhere)
    monkeypatch.chdir(elsewhere)  # Ray adds the working directory to what workers import from
    log = tmp_path / "log"

    noting = SimpleNamespace(of=lambda *model, **more: replace(NotedModel.of(*model, **more), log=str(log)))
    monkeypatch.setattr("jobs.embedding.pipeline.ModelSource", noting)

    def run(name: str, address: str | None, resources: dict[str, float]) -> tuple[Report, Collection]:
        spec = JobSpec(
            source=str(gallery.folder),
            collection=str(tmp_path / name),
            model=str(DEMO_MODEL),
            resources=Resources(address=address, block_size=BLOCK, actor_resources=resources),
            max_reject_rate=0.5,
        )
        report = Update(spec=spec, console=Console(quiet=True), index=False).run()
        return report, Collection.open(str(tmp_path / name))

    there, many = run("many", three.address, {"npu": 1})
    noted = [line.split() for line in log.read_text().splitlines()]
    assert {node for node, _ in noted} == three.ids
    assert len(noted) == 2
    assert all("py_modules" in file for _, file in noted)
    monkeypatch.chdir(tmp_path)
    alone, one = run("one", None, {})
    # A picture with too many pixels counts as failed, since the limit may be raised.
    counts = [(each.embedded, each.rejected, each.failed) for each in (there, alone)]
    assert counts == [(COUNT - BROKEN, BROKEN - 1, 1)] * 2
    assert live(many)["uri"].to_pylist() == live(one)["uri"].to_pylist()
    assert_rows_are_the_same(live(many), live(one))


def assert_no_row_is_lost_or_doubled(nodes: Nodes, gallery: Gallery, tmp_path: Path, lose: Callable[[], None]) -> None:
    """Run a job on all nodes with a device, and call `lose` twice meanwhile."""
    log = tmp_path / "log"
    count = len(nodes.with_device)
    with ray_cluster(nodes.address, verbose=False):
        pool = Pool(resources={"npu": 1}).for_cluster(None, None)
        assert pool.actors == (count, count)
        events = AfterRows((60, lose), (150, lose))
        load = Slow(str(log), 0.05)
        report = embed(gallery.folder, tmp_path / "c", load=load, where=Place(pool=pool), progress=events)
    assert events.then == []
    assert (report.embedded, report.rejected) == (COUNT - BROKEN, BROKEN)
    assert_gallery_is_embedded(Collection.open(str(tmp_path / "c")), gallery)
    assert len(set(log.read_text().split())) >= 2


@pytest.mark.long
def test_nodes_that_are_lost_and_replaced_lose_no_row(three: Nodes, gallery: Gallery, tmp_path: Path) -> None:
    def replace_one() -> None:
        three.kill()
        three.add()

    assert_no_row_is_lost_or_doubled(three, gallery, tmp_path, replace_one)


@pytest.mark.long
def test_no_row_is_lost_or_doubled_if_nodes_are_lost_for_good(gallery: Gallery, tmp_path: Path) -> None:
    nodes = Nodes(3)
    try:
        assert_no_row_is_lost_or_doubled(nodes, gallery, tmp_path, nodes.kill)
    finally:
        nodes.shutdown()


def exported(name: str, label: str) -> dict[tuple[str, str], float]:
    """A metric that the cluster's nodes export, by worker and label."""
    found = {}
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        if not node["Alive"]:
            continue
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        for family in text_string_to_metric_families(requests.get(url, timeout=30).text):
            for sample in family.samples:
                if sample.name == name:
                    found[sample.labels["WorkerId"], sample.labels.get(label, "")] = sample.value
    return found


@pytest.mark.long
def test_a_pool_grows_and_rays_metrics_count_its_stages(three: Nodes, gallery: Gallery, tmp_path: Path) -> None:
    class Watched(AfterRows):
        def __call__(self, report: EmbedReport) -> None:
            for name, label in (("rows", "stage"), ("rejects", "reason"), ("stage_seconds", "stage")):
                seen.update({(name, *key): v for key, v in exported(f"ray_likeness_job_{name}_total", label).items()})
            idle.update(exported("ray_likeness_job_actor_idle_share", ""))

    seen: dict[tuple[str, str, str], float] = {}
    idle: dict[tuple[str, str], float] = {}
    with ray_cluster(three.address, verbose=False):
        Watched()(EmbedReport(listed=0, already_there=0))
        before, seen = seen, {}
        pool = Pool(resources={"npu": 1}).for_cluster((1, 2), None)
        load = Slow(str(tmp_path / "log"), 0.1)
        report = embed(gallery.folder, tmp_path / "c", load=load, where=Place(pool=pool), progress=Watched())
    assert report.embedded == COUNT - BROKEN
    assert set((tmp_path / "log").read_text().split()) == three.ids
    assert len(report.actors) == 2
    assert 0 <= report.idle_share < 1
    counts: Counter[tuple[str, str]] = Counter()
    for (name, worker, label), value in seen.items():
        counts[name, label] += value - before.get((name, worker, label), 0)  # type: ignore[assignment]
    lost = sum(reason in ("not_found", "permission_denied") for reason in gallery.broken.values())
    assert counts["rows", "fetch"] == COUNT - lost
    assert counts["rows", "decode"] == COUNT - BROKEN
    # Metrics of an actor since its last report are lost with it.
    assert 0 < counts["rows", "embed"] <= COUNT - BROKEN
    assert 0 < counts["rows", "write"] <= COUNT
    rejects = {label: count for (name, label), count in counts.items() if name == "rejects" and count}
    assert rejects == Counter(gallery.broken.values())
    assert all(counts["stage_seconds", stage] > 0 for stage in ("fetch", "decode", "embed", "write"))
    assert idle
    assert all(0 <= share <= 1 for share in idle.values())


def test_another_version_of_ray_is_refused_with_both_versions(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.__version__", "2.1.0")
    with (
        pytest.raises(JobError, match=r"Ray: 2\.6.*Ray: 2\.1\.0.*expected the versions of Ray and Python"),
        ray_cluster(three.address, verbose=False),
    ):
        pass


def noting_run(job: SegmentJob) -> SegmentRecord | None:
    note(str(Path(job.storage.absolute("")) / "nodes"), here())
    return job.run()


@pytest.mark.long
def test_segments_of_several_nodes_equal_those_built_in_this_process(
    three: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.indexing.segment_tasks._run", noting_run)
    manifests = []
    for name in ("there", "here"):
        collection = Collection.create_or_open(str(tmp_path / name))
        add_run(collection, rows([f"{number:05d}" for number in range(2_400)], unit_vectors(2_400)))
        run_jobs = run_on_ray(three.address, Console(quiet=True)) if name == "there" else run_here
        manifests.append(build_index(collection, IndexSettings(segment_rows=400), run_jobs=run_jobs))
    far, near = manifests
    assert len(far.segments) == 6
    assert [(s.ntotal, s.factory, s.files) for s in far.segments] == [
        (s.ntotal, s.factory, s.files) for s in near.segments
    ]
    assert len(set((tmp_path / "there" / "nodes").read_text().split())) >= 2
