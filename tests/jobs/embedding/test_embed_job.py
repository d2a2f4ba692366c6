"""The embedding job on a real Ray: the same rows as without Ray, and errors of workers."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ray import cloudpickle

from embedder.errors import ModelError, ModelNotFoundError
from embedder.protocol import Embedder
from index.collection import Collection
from jobs.cluster.session import ray_cluster
from jobs.demo.gallery import Gallery
from jobs.embedding.model_source import ModelSource
from jobs.embedding.placement import Place
from jobs.errors import JobError
from tests.support.fake_embedder import FakeEmbedder
from tests.support.nights.fake_job import assert_gallery_is_embedded, embed

pytestmark = pytest.mark.ray


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # Ray's workers cannot import a test


class WithoutMemory(FakeEmbedder):
    """Loads, and fails on every batch."""

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        raise ModelError("the device has no memory left")


def without_model() -> Embedder:
    raise ModelNotFoundError("there is no such model on this machine")


@pytest.mark.usefixtures("cluster")
class TestEmbed:
    @pytest.mark.parametrize("tiles", [None, "2x2"])
    def test_rows_are_those_of_a_job_without_ray_bit_for_bit(
        self, gallery: Gallery, tmp_path: Path, tiles: str | None
    ) -> None:
        load = ModelSource(model="demo", device="cpu")
        demo = load()
        for name, where, size in (("ray", None, 16), ("here", Place(), 16), ("larger", Place(), 64)):
            keep = {"colourfulness": {"$gt": 40}}  # which the workers measure
            options: Any = {"where": where, "block_size": size, "keep": keep, "tiles": tiles}
            embed(gallery.folder, tmp_path / name, load=load, like=demo, **options)
        ray, *others = (
            Collection.open(str(tmp_path / name)).live_rows().sort_by("image_id") for name in ("ray", "here", "larger")
        )
        assert ray.num_rows == 60
        by_ray = Collection.open(str(tmp_path / "ray"))
        [run] = by_ray.runs()
        assert sorted(file.rows for file in by_ray.files_of(run)) == [12, 16, 16, 16]
        assert not list((tmp_path / "ray").rglob("todo-*"))
        assert ray["error_reason"].to_pylist().count("filtered") == 10
        assert all(other.equals(ray) for other in others)

    @pytest.mark.parametrize(
        ("load", "message"),
        [
            (WithoutMemory, "the device has no memory left"),
            (without_model, "there is no such model on this machine"),
        ],
    )
    def test_a_workers_error_is_one_line(
        self, gallery: Gallery, tmp_path: Path, load: Callable[[], Embedder], message: str
    ) -> None:
        with pytest.raises(JobError) as raised:
            embed(gallery.folder, tmp_path / "c", load=load)
        assert message in str(raised.value)
        assert "run the same command again to continue" in str(raised.value)
        assert len(str(raised.value).splitlines()) == 1
        assert Collection.open(str(tmp_path / "c")).runs() == []

    def test_what_a_killed_job_left_in_the_folder_of_its_run_is_removed(self, gallery: Gallery, tmp_path: Path) -> None:
        with pytest.raises(JobError):
            embed(gallery.folder, tmp_path / "c", load=WithoutMemory)
        [run] = (tmp_path / "c" / "runs").iterdir()
        (run / "todo-0123abcd").mkdir()
        embed(gallery.folder, tmp_path / "c")
        assert_gallery_is_embedded(Collection.open(str(tmp_path / "c")), gallery)
        assert not list(run.glob("todo-*"))


def test_a_missing_cluster_is_one_line() -> None:
    with (
        pytest.raises(JobError, match=r"cannot join the Ray cluster at 127.0.0.1:1 .*refused"),
        ray_cluster("127.0.0.1:1", verbose=True),
    ):
        pass
