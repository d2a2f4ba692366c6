"""The file of a segment's vectors: read completely or with an error, even if it has been unlinked."""

import os
from pathlib import Path

import numpy as np
import pytest

from index.segments.vector_file import VectorFile, flat_header
from tests.support.collections.hand_made import unit_vectors

DIM, ROWS = 6, 101
VECTORS = unit_vectors(ROWS, dim=DIM)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.faiss"
    path.write_bytes(flat_header(DIM, ROWS) + VECTORS.tobytes())
    return path


@pytest.mark.parametrize("rows", [1, 7, 100, 101, 1_000])
def test_blocks_are_all_the_vectors_and_may_be_kept(path: Path, rows: int) -> None:
    file = VectorFile(path, ROWS, DIM)
    path.unlink()
    assert np.array_equal(np.concatenate(list(file.blocks(rows))), VECTORS)


@pytest.mark.parametrize("size", [1, 8, 50, 97, 100, 101])
def test_a_sample_is_some_of_the_vectors_in_their_order(path: Path, size: int) -> None:
    sample = VectorFile(path, ROWS, DIM).sample(size)
    rows = [int(np.flatnonzero((vector == VECTORS).all(axis=1))[0]) for vector in sample]
    assert rows == sorted(set(rows))
    assert size - 3 <= len(rows) <= size  # the last run of the file has five


def test_a_short_read_is_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, parts, offset: real(file, [parts[0][:10]], offset))
    file = VectorFile(path, ROWS, DIM)
    assert np.array_equal(np.concatenate(list(file.blocks(40))), VECTORS)
    assert len(file.sample(ROWS)) == ROWS


def test_a_file_that_ends_too_early_is_an_error(path: Path) -> None:
    file = VectorFile(path, ROWS, DIM)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(OSError, match=r"vectors\.faiss ends at byte 2,468, 1 before the vectors do"):
        list(file.blocks())
    with pytest.raises(OSError, match="ends at byte"):
        file.sample(ROWS)
