"""The merge policy: segments stay few, and rows are rarely written again."""

import pytest

from index.build.merge_policy import MERGE_FACTOR as MANY
from index.build.merge_policy import Size, choose_merge

LIMIT = 1_000_000


def sizes(*live: int, dead: int = 0) -> list[Size]:
    return [Size(ntotal=rows + dead, live=rows) for rows in live]


@pytest.mark.parametrize(
    ("segments", "limit", "expected"),
    [
        ([], LIMIT, []),
        (sizes(1), LIMIT, []),
        (sizes(100_000, *[10] * (MANY - 1)), LIMIT, []),
        (sizes(100_000, *[10] * MANY), LIMIT, list(range(1, MANY + 1))),
        (sizes(500, 1, *[900 * MANY] * (MANY - 2)), LIMIT, list(range(MANY))),  # all are of the lowest level
        (sizes(*[500] * (MANY - 1), *[1_100 * MANY] * (MANY - 1)), LIMIT, []),
        # Smaller ones are merged too.
        (sizes(*[1_100 * MANY] * MANY, 300, 400_000, 20), LIMIT, [*range(MANY), MANY, MANY + 2]),
        (sizes(*[100_000] * 8), LIMIT, list(range(8))),
        (sizes(*[200_000] * 8), LIMIT, [0, 1, 2, 3, 4]),  # as many as fit
        (sizes(*[600_000] * 20), LIMIT, []),  # full
        (sizes(*[30] * 20, 1, 2), 50, []),  # full, small as the limit is
        (sizes(*[30] * 20, *[2] * 8), 50, list(range(20, 28))),
        (sizes(100, 66, dead=33), LIMIT, []),
        (sizes(100, 65, dead=33), LIMIT, [1]),
        (sizes(100, dead=51) + sizes(30), LIMIT, [0]),
        ([Size(ntotal=10, live=0), Size(ntotal=10, live=10)], LIMIT, [0]),
        (sizes(640_000, 600_000, dead=360_000), LIMIT, [1]),  # both do not fit: the other one is merged later
    ],
)
def test_which_segments_are_merged(segments: list[Size], limit: int, expected: list[int]) -> None:
    assert choose_merge(segments, 0, limit) == (expected, False, None)
    if segments and len(segments) - 1 in expected:  # the result is the same if the last one is new
        *stored, last = segments
        if last.live == last.ntotal:
            assert choose_merge(stored, last.live, limit) == (expected[:-1], True, None)


@pytest.mark.parametrize(("rows", "limit"), [(100_000, LIMIT), (2_000_000, LIMIT), (10_000, 2_000)])
def test_a_thousand_updates_of_one_percent(rows: int, limit: int) -> None:
    """Each update adds 1% of the first build's rows and deletes as many, evenly from all segments."""
    segments = [Size(ntotal=limit, live=limit)] * (rows // limit) or sizes(rows)
    step, written, max_segments = rows // 100, 0, 0
    for _ in range(1_000):
        total = sum(size.live for size in segments)
        deaths, dying = 0.0, []
        for size in segments:
            before = int(deaths)
            deaths += step * size.live / total
            dying.append(int(deaths) - before)
        segments = [Size(ntotal=size.ntotal, live=size.live - dead) for size, dead in zip(segments, dying, strict=True)]
        segments = [size for size in segments if size.live]
        merged, with_new, _ = choose_merge(segments, step, limit)
        new = sum(segments[number].live for number in merged) + (step if with_new else 0)
        assert new <= limit
        written += new + (0 if with_new else step)
        segments = [size for number, size in enumerate(segments) if number not in merged]
        segments += sizes(*([new] if new else []), *([] if with_new else [step]))
        max_segments = max(max_segments, len(segments))
    assert max_segments <= 25
    # Measured: each added row is written 3.2 to 3.8 times more with a merge factor of 8, 4.2 to 4.5 times with 4.
    assert written / (1_000 * step) - 1 <= 5
