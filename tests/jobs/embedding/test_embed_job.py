"""The embedding job on a real Ray: what it writes, what it leaves out, and what it does the second time."""

import csv
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from ray import cloudpickle

from embedder.errors import ModelError, ModelNotFoundError
from embedder.fake import FakeEmbedder
from embedder.images.decode import decode_image
from embedder.protocol import Embedder
from index.collection import Collection
from jobs.cluster.pool import Pool
from jobs.cluster.session import ray_cluster
from jobs.demo.gallery import Gallery, make_gallery
from jobs.embedding.commit import commit
from jobs.embedding.model import model_record
from jobs.embedding.on_ray import blocks_on_ray
from jobs.embedding.pipeline import write
from jobs.embedding.report import EmbedReport
from jobs.errors import JobError, TooManyRejectsError
from jobs.sources.list_images import list_images
from tests.support.collections.plans import plan_of

pytestmark = pytest.mark.ray


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # Ray's workers cannot import a test


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    return make_gallery(tmp_path_factory.mktemp("pictures"), count=60, broken=20)


class WithoutMemory(FakeEmbedder):
    """Loads, and fails on every batch."""

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        raise ModelError("the device has no memory left")


def without_model() -> Embedder:
    raise ModelNotFoundError("there is no such model on this machine")


def run(
    source: Path, collection: Path, *, max_reject_rate: float = 0.5, load: Callable[[], Embedder] = FakeEmbedder
) -> EmbedReport:
    opened = Collection.create_or_open(str(collection))
    fake = FakeEmbedder()
    plan = plan_of(list_images(str(source)), opened, str(source), model_record(fake.identity))
    if plan.done:
        return EmbedReport.of(plan)
    written = write(plan, opened, load=load, crop=fake.crop, blocks=partial(blocks_on_ray, Pool()), block_size=16)
    commit(opened, [written], max_reject_rate)
    return written.report


def expected_embedding(path: Path) -> NDArray[np.float32]:
    fake = FakeEmbedder()
    vector: NDArray[np.float32] = fake.embed_images(decode_image(path.read_bytes(), fake.crop).pixels[None])[0]
    return vector


@pytest.mark.usefixtures("cluster")
class TestEmbed:
    def test_every_good_image_has_its_own_vector_and_every_broken_one_its_reason(
        self, gallery: Gallery, tmp_path: Path
    ) -> None:
        report = run(gallery.folder, tmp_path / "c")
        assert (report.listed, report.already_there, report.embedded, report.rejected) == (60, 0, 40, 20)
        rows = {str(row["image_id"]): row for row in Collection.open(str(tmp_path / "c")).live_rows().to_pylist()}
        assert {name: rows[name]["error_reason"] for name in gallery.broken} == dict(gallery.broken)
        assert all(rows[name]["embedding"] is None for name in gallery.broken)
        for exhibit in gallery.exhibits:
            row = rows[exhibit.image_id]
            expected = expected_embedding(gallery.folder / exhibit.image_id)
            np.testing.assert_allclose(row["embedding"], expected, atol=1e-6)
            assert (row["width"], row["height"]) == exhibit.size
            assert row["label"] == exhibit.subject.shape

    def test_too_many_rejects_leave_the_work_for_the_next_attempt(self, gallery: Gallery, tmp_path: Path) -> None:
        with pytest.raises(
            TooManyRejectsError, match=r"20 of 60 .* \(33.3%; mostly not_an_image.*more than the 5.0% allowed"
        ):
            run(gallery.folder, tmp_path / "c", max_reject_rate=0.05)
        collection = Collection.open(str(tmp_path / "c"))
        assert collection.runs() == []
        assert collection.live_rows().num_rows == 0
        report = run(gallery.folder, tmp_path / "c", max_reject_rate=0.4)
        assert (report.already_there, report.embedded, report.rejected) == (60, 0, 0)
        assert sum(report.reject_reasons.values()) == 20
        assert len(collection.runs()) == 1
        assert collection.live_rows().num_rows == 60

    def test_a_list_with_ids_and_metadata(self, gallery: Gallery, tmp_path: Path) -> None:
        lines = tmp_path / "list.csv"
        with lines.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("id", "uri", "price", "size"))
            for number, exhibit in enumerate(gallery.exhibits[:10]):
                writer.writerow((f"p{number}", gallery.folder / exhibit.image_id, number * 1.5, "XL"))
            writer.writerow(("gone", tmp_path / "gone.jpg", 1, "S"))
            writer.writerow(("blank", "", 1, "S"))
        report = run(lines, tmp_path / "c")
        assert (report.listed, report.embedded, report.rejected) == (12, 10, 2)
        rows = {row["image_id"]: row for row in Collection.open(str(tmp_path / "c")).live_rows().to_pylist()}
        first = gallery.folder / gallery.exhibits[0].image_id
        assert (rows["p3"]["price"], rows["p3"]["source_size"]) == (4.5, "XL")
        assert rows["p0"]["size"] == first.stat().st_size
        assert (rows["gone"]["error_stage"], rows["gone"]["error_reason"]) == ("fetch", "not_found")
        assert rows["blank"]["error_reason"] == "no_uri"

    @pytest.mark.parametrize(
        ("load", "told"),
        [(WithoutMemory, "the device has no memory left"), (without_model, "there is no such model on this machine")],
    )
    def test_what_stops_a_worker_is_told_in_one_line(
        self, gallery: Gallery, tmp_path: Path, load: Callable[[], Embedder], told: str
    ) -> None:
        with pytest.raises(JobError) as raised:
            run(gallery.folder, tmp_path / "c", load=load)
        assert told in str(raised.value)
        assert "the same command goes on with it" in str(raised.value)
        assert len(str(raised.value).splitlines()) == 1
        assert Collection.open(str(tmp_path / "c")).runs() == []


def test_a_cluster_that_is_not_there_is_one_line() -> None:
    with (
        pytest.raises(JobError, match=r"cannot join the Ray cluster at 127.0.0.1:1 .*refused"),
        ray_cluster("127.0.0.1:1", verbose=True),
    ):
        pass
