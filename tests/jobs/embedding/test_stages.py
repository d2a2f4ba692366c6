"""The stages of the embedding pipeline without Ray: reasons of rejects, late blocks, and credentials."""

import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from ray.data._internal.metadata_exporter import sanitize_for_struct

from embedder.errors import FetchError
from embedder.fetch import Fetcher
from embedder.fetch.validators import Download
from embedder.images.decode import decode_image
from embedder.protocol import Embedder
from index.collection import Collection
from index.collection.records.run_manifest import RowFile
from jobs.embedding.commit import commit
from jobs.embedding.embed_rows import embed_rows
from jobs.embedding.model_source import model_record
from jobs.embedding.pipeline import write
from jobs.embedding.placement import Place
from jobs.embedding.report import BlockSummary
from jobs.embedding.stages import DecodeSettings, EmbedBlock, EmbedSettings, Work, drop_fetcher, fetch_and_decode
from jobs.planning.plan import write_block
from jobs.planning.todo import Todo
from jobs.sources.listing import listing_table
from tests.support.collections.run_plans import run_plan_of
from tests.support.collections.small_collection import png
from tests.support.fake_embedder import FakeEmbedder

FAKE = FakeEmbedder()
MODEL = model_record(FAKE.identity)
SETTINGS = DecodeSettings(crop=FAKE.crop, draft=True, threads=2)


def listed(*places: str) -> pa.Table:
    return listing_table({"image_id": places, "uri": places}, {})


@pytest.mark.parametrize("reason", ["not_found", "permission_denied"])
def test_a_listed_file_that_cannot_be_read_now_is_retryable(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    monkeypatch.setattr(Fetcher, "download", Mock(side_effect=FetchError(reason, "cannot be read")))
    table = fetch_and_decode(listed("gone.png"), settings=SETTINGS)
    assert (table["error_reason"].to_pylist(), table["retryable"].to_pylist()) == ([reason], [True])


def test_an_unexpected_error_ends_a_batch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    other_is_done, waited = threading.Event(), []

    def fail(_: Fetcher, uri: str) -> Download:
        if uri == "slow":
            other_is_done.wait(10)
            waited.append(uri)
        raise RuntimeError(uri)

    monkeypatch.setattr(Fetcher, "download", fail)
    with pytest.raises(RuntimeError, match="broken"):
        fetch_and_decode(listed("slow", "broken"), settings=SETTINGS)
    assert waited == []
    other_is_done.set()


def test_the_next_job_of_a_process_reads_a_rewritten_parquet_file_of_the_same_size(tmp_path: Path) -> None:
    def hashes(*colours: tuple[int, int, int]) -> list[str | None]:
        cells = [png(colour) for colour in colours]
        pq.write_table(pa.table({"image": cells}), tmp_path / "a.parquet", compression="none", use_dictionary=False)
        uris = [f"{tmp_path}/a.parquet#row={row}&column=image" for row in range(2)]
        read = fetch_and_decode(listed(*uris), settings=SETTINGS)["content_hash"].to_pylist()
        drop_fetcher()
        return read

    red, green = (200, 0, 0), (0, 200, 0)
    assert hashes(red, green) == hashes(green, red)[::-1]


def test_a_late_block_does_not_replace_the_file_that_counts(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actor was frozen, and is on another device: its vectors differ, and so does the size of its file."""
    (tmp_path / "a.png").write_bytes(png((1, 2, 3)))
    table = fetch_and_decode(listed(str(tmp_path / "a.png")), settings=SETTINGS)
    frozen = []

    def report_both(_: Todo, work: Work, __: Place) -> Iterator[BlockSummary]:
        frozen.append(EmbedBlock(replace(work.embed, load=OtherDevice)))
        for each in (EmbedBlock(work.embed), *frozen):
            yield from each.each([table])

    monkeypatch.setattr("jobs.embedding.pipeline.run_blocks", report_both)
    plan = run_plan_of(listed(str(tmp_path / "a.png")), collection, "/pictures", MODEL)
    written = write(plan, collection, load=FakeEmbedder, decode=SETTINGS, where=Place())
    assert (written.report.embedded, len(written.files)) == (1, 1)
    [*frozen[0].each([table])]
    commit(collection, [written], 0.0)
    [*frozen[0].each([table])]
    assert len(collection.row_files(written.run.run_id)) == 2
    pixels = decode_image((tmp_path / "a.png").read_bytes(), FAKE.crop).pixels
    assert collection.live_rows(["embedding"])["embedding"].to_pylist() == FAKE.embed_images(pixels[None]).tolist()


def test_a_block_is_written_while_the_next_one_is_embedded(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded, overlaps = [threading.Event() for _ in range(3)], list[bool]()

    def write_late(*block: Any) -> RowFile:
        following = embedded[len(overlaps) + 1 :]
        overlaps.append(not following or following[0].wait(10))
        return write_block(*block)

    def make_rows(table: pa.Table, embedder: Embedder) -> pa.Table:
        next(each for each in embedded if not each.is_set()).set()
        return embed_rows(table, embedder)

    monkeypatch.setattr("jobs.embedding.stages.write_block", write_late)
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(png((1, 2, 3)))
    plan = run_plan_of(listed(*(str(tmp_path / f"{name}.png") for name in "abc")), collection, "/pictures", MODEL)
    written = write(
        plan, collection, load=FakeEmbedder, decode=SETTINGS, where=Place(), block_size=1, make_rows=make_rows
    )
    assert written.report.embedded == 3
    assert overlaps == [True] * 3


def test_credentials_reach_the_actors_but_not_rays_logs(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[EmbedSettings] = []

    def receive(_: Todo, work: Work, __: Place) -> Iterator[BlockSummary]:
        received.append(work.embed)
        return iter(())

    monkeypatch.setattr("jobs.embedding.pipeline.run_blocks", receive)
    plan = run_plan_of(listed("a"), collection, "/pictures", MODEL)
    there = Collection(replace(collection.storage, address="s3://KEY:hush%2Fhush@bucket/c"))
    write(plan, there, load=FakeEmbedder, decode=SETTINGS, where=Place())
    monkeypatch.setattr(Collection, "open", lambda address: address)
    assert pickle.loads(pickle.dumps(received[0].collection))() == "s3://KEY:hush%2Fhush@bucket/c"
    shown = str(sanitize_for_struct(received))  # type: ignore[no-untyped-call]
    assert "bucket/c" in shown
    assert "hush" not in shown


class OtherDevice(FakeEmbedder):
    """The same model, with other vectors."""

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.eye(len(pixels), self.identity.dim, dtype=np.float32)


def test_a_line_of_a_list_gets_its_size_and_one_without_a_uri_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png((1, 2, 3)))
    columns: dict[str, list[str | None]] = {"image_id": ["a", "blank"], "uri": [str(tmp_path / "a.png"), None]}
    table = fetch_and_decode(listing_table(columns, {}), settings=SETTINGS)
    assert table["error_reason"].to_pylist() == [None, "no_uri"]
    assert table["size"].to_pylist() == [len(png((1, 2, 3))), None]
