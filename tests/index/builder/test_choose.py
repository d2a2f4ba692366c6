"""The kind of index that is chosen, and the estimate of its memory."""

from pathlib import Path
from typing import Any

import pytest

from index.builder.choose import ann_factory, choose, factory_of
from index.builder.segment import write_ann
from index.collection.layout import ANN, VECTORS
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import FLAT
from index.errors import FactoryError
from index.segments.exact import max_exact_rows
from index.segments.kinds.registry import new_index
from tests.support.collections.hand_made import segment_of, unit_vectors

M, MB = 1_000_000, 1 << 20


def chosen(ntotal: int, dim: int, settings: IndexSettings) -> str:
    (name,) = [option.name for option in choose(ntotal, dim, settings) if option.chosen]
    return name


@pytest.mark.parametrize(
    ("ntotal", "dim", "settings", "expected"),
    [
        (1, 512, {}, "Flat"),
        (24_414, 512, {}, "Flat"),  # 5 ms at 10 GB/s
        (24_415, 512, {}, "PCAR64,IVF312,PQ64x4fsr,Refine(SQ8)"),
        (24_415, 512, {"latency_ms": 6}, "Flat"),
        (1_000, 512, {"latency_ms": 0.1}, "PCAR64,IVF62,PQ64x4fsr,Refine(SQ8)"),
        (M, 1, {}, "Flat"),
        (M, 512, {}, "PCAR64,IVF1000,PQ64x4fsr,Refine(SQ8)"),
        (M, 512, {"max_memory": 600 * MB}, "PCAR64,IVF1000,PQ64x4fsr,Refine(SQ8)"),
        (M, 512, {"max_memory": 100 * MB}, "PCAR64,IVF1000,PQ64x4fsr"),
        (10_000, 512, {"max_memory": 30 * MB}, "Flat"),
        (10_000, 512, {"max_memory": 10 * MB}, "PCAR64,IVF200,PQ64x4fsr,Refine(SQ8)"),
        (M, 512, {"factory": "HNSW32,SQ8"}, "HNSW32,SQ8"),
        (10, 512, {"factory": "HNSW32,SQ8"}, "HNSW32,SQ8"),
        (M, 512, {"factory": "Flat"}, "Flat"),
    ],
)
def test_the_first_kind_that_fits_is_chosen(ntotal: int, dim: int, settings: dict[str, Any], expected: str) -> None:
    assert chosen(ntotal, dim, IndexSettings(**settings)) == expected


def test_each_option_has_a_reason() -> None:
    options = choose(M, 512, IndexSettings(max_memory=200 * MB))
    assert [option.chosen for option in options] == [False, False, True]
    assert [option.why for option in options] == [
        "exact; a scan takes about 204.8 ms, over 5 ms; over --max-memory 209,715,200",
        "ranked by 8-bit vectors in memory; over --max-memory 209,715,200",
        "least memory; ranked by exact vectors from disk",
    ]
    assert options[0].memory == 2_048_000_000
    with pytest.raises(FactoryError, match=r"no index of 1,000,000 vectors of 512 .* 1,048,576 bytes: the smallest"):
        choose(M, 512, IndexSettings(max_memory=MB))


def test_options_describe_the_index_of_a_segment() -> None:
    options = choose(4 * M, 512, IndexSettings())
    one = choose(M, 512, IndexSettings())
    assert [option.name for option in options] == [option.name for option in one]
    assert [option.memory for option in options] == [4 * option.memory for option in one]


def test_the_memory_of_a_requested_index_is_limited_too() -> None:
    settings = IndexSettings(factory="IVF100,PQ16x4fs,Refine(SQ8)")
    (option,) = choose(M, 64, settings)
    assert option.memory == M * (8 + 8 + 64)
    with pytest.raises(FactoryError, match=r"takes 80,000,000 bytes for 1,000,000 .* over --max-memory 79,999,999"):
        choose(M, 64, settings.model_copy(update={"max_memory": 79_999_999}))


@pytest.mark.parametrize(
    "factory", ["Flat", "SQ8", "HNSW16", "HNSW32,SQ8", "IVF16,Flat", "PCAR8,IVF16,PQ8x4fs,Refine(SQ8)"]
)
def test_the_bytes_of_a_row_are_those_that_faiss_writes(tmp_path: Path, factory: str) -> None:
    vectors = unit_vectors(6_000, dim=16)
    segment_of(tmp_path, vectors)
    write_ann(tmp_path, factory, len(vectors), vectors)
    assert new_index(factory, 16).row_bytes * 6_000 == pytest.approx((tmp_path / ANN).stat().st_size, rel=0.1)


def test_small_segments_of_a_large_version_are_searched_exactly() -> None:
    settings = IndexSettings()
    options = choose(M, 512, settings)
    sample = unit_vectors(1_000, dim=512)
    assert max_exact_rows(settings, 512) == 24_414
    assert factory_of(options, sample, 24_414, settings, max_exact_rows=24_414) == FLAT
    # Random vectors spread over nearly all dimensions.
    assert (
        factory_of(options, sample, 40_000, settings, max_exact_rows=24_414) == "PCAR160,IVF400,PQ160x4fsr,Refine(SQ8)"
    )
    sample[:, 50:] = 0
    assert factory_of(options, sample, 40_000, settings, max_exact_rows=24_414) == "PCAR48,IVF400,PQ48x4fsr,Refine(SQ8)"


@pytest.mark.parametrize(
    ("spread", "dim", "expected"),
    [
        (1, 512, "PCAR16,"),
        (17, 512, "PCAR32,"),
        (400, 512, "PCAR160,"),
        (17, 20, ""),
        (3, 7, ""),
        (200, 161, "PCAR160,"),
    ],
)
def test_each_quantized_dimension_has_a_code(spread: int, dim: int, expected: str) -> None:
    codes = expected[4:-1] or dim
    assert ann_factory(10_000, dim, refine=False, spread=spread) == f"{expected}IVF200,PQ{codes}x4fsr"


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 8, 63, 64, 65, 768])
def test_the_kinds_chosen_for_a_dim_can_be_built(tmp_path: Path, dim: int) -> None:
    settings = IndexSettings(latency_ms=1e-6)
    sample = unit_vectors(600, dim=dim)
    segment_of(tmp_path, sample)
    for refine in (True, False):
        limit = None if refine else choose(600, dim, settings)[2].memory
        options = choose(600, dim, settings.model_copy(update={"max_memory": limit}))
        write_ann(tmp_path, factory_of(options, sample, 600, settings, max_exact_rows=0), 600, sample)
    assert (tmp_path / ANN).stat().st_size > 0


@pytest.mark.parametrize(("ntotal", "dim"), [(8_000, 64), (8_000, 24), (15_000, 192)])
def test_memory_is_estimated_within_a_tenth(tmp_path: Path, ntotal: int, dim: int) -> None:
    vectors = unit_vectors(ntotal, dim=dim)
    segment_of(tmp_path, vectors)
    options = choose(ntotal, dim, IndexSettings(latency_ms=0.01))
    for option, refine in zip(options[1:], (True, False), strict=True):
        write_ann(tmp_path, ann_factory(ntotal, dim, refine=refine, spread=dim), ntotal, vectors)
        assert option.memory == pytest.approx((tmp_path / ANN).stat().st_size, rel=0.1)
    assert options[0].memory == pytest.approx((tmp_path / VECTORS).stat().st_size, rel=0.1)
