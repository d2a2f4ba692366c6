"""The arithmetic of `benchmarks.cluster`."""

from benchmarks.cluster import steady_rate
from benchmarks.common.embedding import Progress


def test_the_rate_covers_the_time_in_which_every_actor_has_work() -> None:
    progress = Progress()
    progress.records = [(10.0, 32, 1), (12.0, 64, 2), (13.0, 96, 2), (14.0, 160, 2), (20.0, 192, 2), (21.0, 224, 2)]
    assert steady_rate(progress, 2, 224) == (160 - 64) / (14.0 - 12.0)
