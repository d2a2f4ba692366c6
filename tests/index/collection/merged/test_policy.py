"""Which runs are merged: few sets stay, and rows are rarely written again."""

import math

import pytest

from index.collection.merged.policy import FACTOR, MAX_SIZE, choose


@pytest.mark.parametrize(
    ("sizes", "max_size", "expected"),
    [
        ([], MAX_SIZE, []),
        ([1], MAX_SIZE, []),
        ([100_000, 10, 10, 10], MAX_SIZE, []),
        ([100_000, 10, 10, 10, 10], MAX_SIZE, [1, 2, 3, 4]),
        ([10, 10, 100_000, 10, 0], MAX_SIZE, [0, 1, 3, 4]),  # in any order, and runs without rows too
        ([500, 1, 3_600, 3_600], MAX_SIZE, [0, 1, 2, 3]),  # all are of the lowest level
        ([500, 500, 500, 4_400, 4_400, 4_400], MAX_SIZE, []),
        # Smaller ones are merged too.
        ([4_400, 4_400, 4_400, 4_400, 300, 400_000, 20], MAX_SIZE, [0, 1, 2, 3, 4, 6]),
        ([200_000] * 8, MAX_SIZE, [0, 1, 2, 3, 4]),  # as many as fit
        ([600_000] * 20, MAX_SIZE, []),  # full
        ([2_000_000, *[600_000] * 3, *[10] * 4], MAX_SIZE, [4, 5, 6, 7]),
        ([30] * 20, 50, []),  # full, small as the maximum is
        ([*[30] * 20, *[2] * 8], 50, list(range(20, 28))),
    ],
)
def test_which_runs_are_merged(sizes: list[int], max_size: int, expected: list[int]) -> None:
    assert choose(sizes, max_size) == expected


@pytest.mark.parametrize(
    ("first", "night", "max_size"), [(100_000, 100, MAX_SIZE), (0, 1, MAX_SIZE), (500, 90, 20_000)]
)
def test_thousands_of_nights(first: int, night: int, max_size: int) -> None:
    sizes, written, most = [first], 0, 0
    for _ in range(5_000):
        sizes.append(night)
        if chosen := choose(sizes, max_size):
            merged = sum(sizes[number] for number in chosen)
            written += merged
            sizes = [size for number, size in enumerate(sizes) if number not in chosen] + [merged]
            assert merged <= max_size
        most = max(most, sum(2 * size <= max_size for size in sizes))
    levels = 1 + math.ceil(math.log(max(1, max_size / 2_000), FACTOR))
    assert most <= (FACTOR - 1) * levels + 1
    assert written <= 5_000 * (night * (levels + 2) + 1_400)  # and of the lowest level, some with every third night
