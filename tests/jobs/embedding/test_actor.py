from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from embedder.errors import ModelError
from embedder.fake import FakeEmbedder
from jobs.embedding.actor import embed_rows

SIDE = 8
FAKE = FakeEmbedder(side=SIDE, dim=4)
BINARY_TYPES = [pa.binary(), pa.large_binary(), pa.binary(SIDE * SIDE * 3)]


def pictures(count: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)


def batch(crops: Sequence[NDArray[np.uint8] | None], kind: pa.DataType) -> pa.Table:
    cells = [None if crop is None else crop.tobytes() for crop in crops]
    ids = [f"id-{row}" for row in range(len(cells))]
    return pa.table({"image_id": ids, "pixels": pa.array(cells, kind), "label": ids[::-1]})


@pytest.mark.parametrize("kind", BINARY_TYPES, ids=str)
def test_each_row_gets_its_own_vector_and_rejected_rows_none(kind: pa.DataType) -> None:
    crops = pictures(9)
    rejected = {0, 4, 5, 8}
    table = batch([None if row in rejected else crops[row] for row in range(9)], kind)

    embedded = embed_rows(table, FAKE)

    assert embedded.column_names == ["image_id", "label", "embedding"]
    assert embedded.schema.field("embedding").type == pa.list_(pa.float32(), 4)
    assert embedded["image_id"].to_pylist() == table["image_id"].to_pylist()
    assert embedded["label"].to_pylist() == table["label"].to_pylist()
    expected = FAKE.embed_images(crops).tolist()
    assert embedded["embedding"].to_pylist() == [None if row in rejected else expected[row] for row in range(9)]


@pytest.mark.parametrize("kind", BINARY_TYPES, ids=str)
def test_a_slice_that_follows_rejected_rows_stays_aligned(kind: pa.DataType) -> None:
    crops = pictures(6)
    table = batch([None, crops[1], None, *crops[3:]], kind)
    chunked = pa.concat_tables([table.slice(3), table.slice(1, 2)])

    assert embed_rows(table.slice(4), FAKE)["embedding"].to_pylist() == FAKE.embed_images(crops[4:]).tolist()
    assert embed_rows(chunked, FAKE)["embedding"].to_pylist() == [
        *FAKE.embed_images(crops[3:]).tolist(),
        FAKE.embed_images(crops[1:2])[0].tolist(),
        None,
    ]


@pytest.mark.parametrize("kind", [*BINARY_TYPES, pa.null()], ids=str)
@pytest.mark.parametrize("rows", [0, 3])
def test_an_all_rejected_or_empty_batch_keeps_its_rows(kind: pa.DataType, rows: int) -> None:
    embedded = embed_rows(batch([None] * rows, kind), FAKE)

    assert embedded["embedding"].to_pylist() == [None] * rows
    assert embedded["image_id"].to_pylist() == [f"id-{row}" for row in range(rows)]
    assert embedded.schema.field("embedding").type == pa.list_(pa.float32(), 4)


def test_pictures_of_another_size_are_refused_with_both_sizes() -> None:
    table = batch([np.zeros((4, 4, 3), np.uint8)], pa.binary())

    with pytest.raises(ModelError, match=r"expected pixels of 192 bytes, 8 × 8 × 3, got \[48\]"):
        embed_rows(table, FAKE)


def test_a_model_error_is_raised_and_not_turned_into_missing_vectors() -> None:
    class Broken(FakeEmbedder):
        def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
            raise ModelError("out of memory")

    with pytest.raises(ModelError, match="out of memory"):
        embed_rows(batch(list(pictures(3)), pa.binary()), Broken(side=SIDE))


def test_the_fake_is_deterministic_unit_norm_and_nearer_for_pictures_that_look_alike() -> None:
    crops = pictures(2)
    crops[0] //= 2  # darker all over
    near = np.clip(crops[0].astype(int) + 3, 0, 255).astype(np.uint8)
    vectors = FAKE.embed_images(np.stack([crops[0], near, crops[1]]))

    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert vectors[0] @ vectors[1] > 0.99 > vectors[0] @ vectors[2]
    assert np.array_equal(FakeEmbedder(side=SIDE, dim=4).embed_images(crops[:1])[0], vectors[0])
    assert np.array_equal(FAKE.embed_texts(["a", "b"])[1], FAKE.embed_texts(["b"])[0])
    assert FAKE.identity.fingerprint != FakeEmbedder(side=16, dim=4).identity.fingerprint
    with pytest.raises(ModelError, match="multiple of 4, got 10"):
        FakeEmbedder(side=10)
    with pytest.raises(ModelError, match=r"expected uint8 \(n, 8, 8, 3\), got float64"):
        FAKE.embed_images(np.zeros((1, SIDE, SIDE, 3)))  # type: ignore[arg-type]
