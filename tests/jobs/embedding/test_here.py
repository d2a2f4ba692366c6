"""Embedding without Ray: the same rows, and Ray for jobs that take hours."""

import io
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import nullcontext
from dataclasses import asdict
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import prod
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from rich.console import Console

from embedder.errors import ModelError
from embedder.fetch import Fetcher
from embedder.fetch.validators import Download
from index.collection import Collection
from jobs.cluster.pool import Pool
from jobs.demo.gallery import Gallery
from jobs.embedding.model_source import ModelCache
from jobs.embedding.on_ray import decode_images, store_groups
from jobs.embedding.placement import Place, blocks_here, choose_place
from jobs.embedding.report import BlockSummary
from jobs.embedding.stages import CollectionAt, DecodeSettings, Work, fetch_and_decode, stop_decoders
from jobs.errors import RayStartError, TooManyRejectsError
from jobs.sources.listing import listing_table
from jobs.sources.stored_listing import Listing
from jobs.spec import Resources
from tests.support.collections.small_collection import png
from tests.support.fake_embedder import FakeEmbedder
from tests.support.nights.fake_job import assert_gallery_is_embedded, embed


class WithoutMemory(FakeEmbedder):
    """Loads, and fails on every batch."""

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        raise ModelError("the device has no memory left")


def test_a_failure_ends_decoding_and_the_next_job_goes_on(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = list[DecodeSettings]()
    monkeypatch.setattr("jobs.embedding.placement.stop_decoders", stopped.append)
    with pytest.raises(ModelError, match="no memory left"):
        embed(gallery.folder, tmp_path / "c", load=WithoutMemory, where=Place())
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("likeness-decode")]
    assert len(stopped) == 1
    stop_decoders(*stopped)
    collection = Collection.open(str(tmp_path / "c"))
    assert collection.runs() == []
    embed(gallery.folder, tmp_path / "c", where=Place())
    assert_gallery_is_embedded(collection, gallery)


def test_too_many_rejects_leave_the_work_for_the_next_attempt(gallery: Gallery, tmp_path: Path) -> None:
    with pytest.raises(
        TooManyRejectsError, match=r"20 of 60 .* \(33.3%; mostly not_an_image.*more than the 5.0% allowed"
    ):
        embed(gallery.folder, tmp_path / "c", max_reject_rate=0.05, where=Place())
    collection = Collection.open(str(tmp_path / "c"))
    assert collection.runs() == []
    assert collection.live_rows().num_rows == 0
    report = embed(gallery.folder, tmp_path / "c", max_reject_rate=0.4, where=Place())
    # A picture with too many pixels is tried again: the limit may have been raised.
    assert (report.already_there, report.embedded, report.rejected) == (59, 0, 1)
    assert sum(report.reject_reasons.values()) == 20
    assert len(collection.runs()) == 1
    assert collection.live_rows().num_rows == 60


class Elsewhere:
    """Stands for Ray: records how many rows it gets, and embeds them in this process."""

    def __init__(self) -> None:
        self.row_counts: list[int] = []

    def __call__(self, todo: Listing, work: Work, _: Pool) -> Iterator[BlockSummary]:
        self.row_counts.append(todo.num_rows)
        yield from blocks_here(todo, work, ModelCache())


@pytest.mark.parametrize(
    ("resources", "min_hours", "row_counts", "printed"),
    [
        (Resources(), 1.0, [], "in this process, and on Ray if more than 1 h is left"),
        (Resources(), 0.0, [28], "the rest would take more than 1 h: continuing on Ray"),
        (Resources(on="local"), 0.0, [], "in this process"),
        (Resources(on="ray"), 1.0, [60], "on Ray: as requested"),
        (Resources(actors=(1, 2), num_gpus=0.0), 1.0, [60], "on Ray: the job names actors and num_gpus"),
    ],
)
def test_ray_runs_jobs_that_take_hours_or_request_it(
    gallery: Gallery,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    resources: Resources,
    min_hours: float,
    row_counts: list[int],
    printed: str,
) -> None:
    monkeypatch.setattr("jobs.embedding.placement._MIN_HOURS_FOR_RAY", min_hours)
    monkeypatch.setattr("jobs.embedding.placement._FORECAST_AFTER_S", 0.0)
    other, console = Elsewhere(), Console(record=True, file=io.StringIO(), width=200)
    monkeypatch.setattr("jobs.cluster.session.ray_cluster", lambda *_, **__: nullcontext())
    monkeypatch.setattr(Pool, "for_cluster", lambda *_, **__: Pool())
    monkeypatch.setattr("jobs.embedding.on_ray.blocks_on_ray", other)
    with choose_place("embedding", resources, 0, console, model_cache=ModelCache()) as where:
        embed(gallery.folder, tmp_path / "c", where=where)
    assert other.row_counts == row_counts
    assert console.export_text().splitlines()[-1] == f"embedding {printed}"
    assert_gallery_is_embedded(Collection.open(str(tmp_path / "c")), gallery)


def test_a_long_job_stays_in_this_process_if_ray_does_not_start(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.embedding.placement._MIN_HOURS_FOR_RAY", 0.0)
    monkeypatch.setattr("jobs.embedding.placement._FORECAST_AFTER_S", 0.0)
    tried: list[int] = []

    def start(*_: object, **__: object) -> None:
        tried.append(1)
        raise RayStartError("Ray did not start")

    monkeypatch.setattr("jobs.cluster.session.ray_cluster", start)
    console = Console(record=True, file=io.StringIO(), width=200)
    with choose_place("embedding", Resources(), 0, console, model_cache=ModelCache()) as where:
        embed(gallery.folder, tmp_path / "c", where=where)
    assert tried == [1]
    assert console.export_text().splitlines()[-1] == "embedding remains in this process: Ray did not start"
    assert_gallery_is_embedded(Collection.open(str(tmp_path / "c")), gallery)


def answer_the_first_last(monkeypatch: pytest.MonkeyPatch, uris: list[str], ahead: int) -> None:
    """The first picture comes only once those so far ahead, and no others, are asked for."""
    asked, last_is_asked = list[str](), threading.Event()

    def download(_: Fetcher, uri: str) -> Download:
        asked.append(uri)
        if uri == uris[ahead - 1]:
            last_is_asked.set()
        if uri == uris[0]:
            assert last_is_asked.wait(60)
            assert set(asked) <= set(uris[:ahead])  # pixels of the others might not fit into memory
        return Download(data=png((uris.index(uri), 0, 0)))

    monkeypatch.setattr(Fetcher, "download", download)


def test_a_late_picture_from_the_web_holds_up_only_its_own_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uris = [f"http://{number}.example/a.png" for number in range(50)]
    answer_the_first_last(monkeypatch, uris, ahead=32)  # 16 blocks
    (tmp_path / "list.csv").write_text("\n".join(["url", *uris]))
    report = embed(tmp_path / "list.csv", tmp_path / "c", where=Place(), block_size=2)
    assert (report.embedded, report.rejected) == (50, 0)
    rows = Collection.open(str(tmp_path / "c")).live_rows().to_pylist()
    assert {row["uri"]: row["content_hash"] for row in rows} == {
        uri: sha256(png((number, 0, 0))).hexdigest() for number, uri in enumerate(uris)
    }


def test_on_ray_a_late_picture_holds_up_only_its_own_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uris = [f"http://{number}.example/a.png" for number in range(20)]
    answer_the_first_last(monkeypatch, uris, ahead=8)
    monkeypatch.setattr("jobs.embedding.on_ray.DECODE_BATCH", 2)
    monkeypatch.setattr("jobs.embedding.on_ray._FILE_ROWS", 12)
    todo, crop = Listing.of([listing_table({"image_id": uris, "uri": uris}, {})]), FakeEmbedder().crop
    collection = Collection.create_or_open(str(tmp_path / "c"))
    groups, _ = store_groups(todo, 6, collection.storage, "todo")
    assert [(group.path, group.number) for group in groups] == [
        ("000000.parquet", 0),
        ("000000.parquet", 1),
        ("000001.parquet", 0),
        ("000001.parquet", 1),
    ]
    tables = decode_images(
        pa.Table.from_pylist([asdict(group) for group in groups]),
        collection=CollectionAt(str(tmp_path / "c")),
        folder="todo",
        settings=DecodeSettings(crop=crop, ahead_bytes=4 * 2 * prod(crop.shape)),
        block_size=10,
    )
    decoded = pa.concat_tables(tables)
    assert (decoded["uri"].to_pylist(), decoded["pixels"].null_count) == (uris, 0)


def test_a_cancelled_batch_does_not_wait_for_slow_hosts() -> None:
    answered, requested = threading.Event(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.set()
            answered.wait(60)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        urls = [f"http://127.0.0.1:{server.server_port}/{number}" for number in range(8)]
        listing = listing_table({"image_id": urls, "uri": urls}, {})
        settings = DecodeSettings(crop=FakeEmbedder().crop, draft=True, threads=4)
        with pytest.raises(CancelledError):
            fetch_and_decode(listing, settings=settings, is_awaited=lambda: not requested.is_set())
        assert not answered.is_set()
        answered.set()
        server.shutdown()
