"""What `benchmarks.cluster` reports, and that more nodes embed as much more."""

import pytest
from ray import cloudpickle
from rich.console import Console

from benchmarks import cluster
from benchmarks.cluster import Marks, Outcome, conclude


def test_the_rate_is_of_the_time_in_which_every_actor_has_work() -> None:
    marks = Marks()
    marks.noted = [(10.0, 32, 1), (12.0, 64, 2), (13.0, 96, 2), (14.0, 160, 2), (20.0, 192, 2), (21.0, 224, 2)]
    assert marks.steady_rate(2, 224) == (160 - 64) / (14.0 - 12.0)


def test_bars_compare_with_one_node(capsys: pytest.CaptureFixture[str]) -> None:
    def outcome(nodes: int, rate: float) -> Outcome:
        return Outcome(nodes=nodes, images_per_second=rate, start_seconds=3.0, idle_share=0.02)

    assert conclude([outcome(1, 48), outcome(2, 90), outcome(4, 180)], Console()) == 0
    assert conclude([outcome(1, 48), outcome(2, 90), outcome(4, 160)], Console()) == 1
    assert conclude([outcome(1, 44), outcome(2, 88)], Console()) == 1
    assert '"actors_idle_share_4": 0.02' in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_two_and_four_nodes_embed_as_much_more(monkeypatch: pytest.MonkeyPatch) -> None:
    cloudpickle.register_pickle_by_value(cluster)  # type: ignore[no-untyped-call]  # workers have no benchmarks
    monkeypatch.setattr("sys.argv", ["cluster", "--quick"])
    assert cluster.main() == 0
