"""The form in which benchmarks report, and the arithmetic behind the demo model's figures."""

import json
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from benchmarks.common.report import Bar, Goal, Report
from benchmarks.demo_model import agreement, captions, nearest, text_precision


def _conclude(*bars: Bar) -> tuple[int, str]:
    out = StringIO()
    status = Report(benchmark="speed", figures={"images_per_s": 1234.56789}, bars=bars).conclude(
        Console(file=out, width=60)
    )
    return status, out.getvalue()


def test_last_line_is_json_of_the_agreed_form() -> None:
    status, text = _conclude(Bar(name="recall", value=0.951234567, bar=0.95))
    assert status == 0
    assert json.loads(text.splitlines()[-1]) == {
        "benchmark": "speed",
        "figures": {"images_per_s": 1234.57},
        "bars": [{"name": "recall", "value": 0.951235, "bar": 0.95, "ok": True}],
    }


@pytest.mark.parametrize(
    ("value", "bar", "goal", "ok"),
    [
        (0.95, 0.95, Goal.AT_LEAST, True),
        (0.949, 0.95, Goal.AT_LEAST, False),
        (200.0, 200.0, Goal.AT_MOST, True),
        (200.1, 200.0, Goal.AT_MOST, False),
        (float("nan"), 0.0, Goal.AT_LEAST, False),
        (float("nan"), 0.0, Goal.AT_MOST, False),
    ],
)
def test_bars(value: float, bar: float, goal: Goal, ok: bool) -> None:
    assert Bar(name="x", value=value, bar=bar, goal=goal).ok is ok


def test_one_missed_bar_fails_the_benchmark() -> None:
    met, missed = Bar(name="a", value=2, bar=1), Bar(name="b", value=float("nan"), bar=1)
    status, text = _conclude(met, missed)
    assert status == 1
    assert [bar["ok"] for bar in json.loads(text.splitlines()[-1])["bars"]] == [True, False]
    assert json.loads(text.splitlines()[-1])["bars"][1]["value"] is None


def test_long_lines_of_json_stay_one_line() -> None:
    out = StringIO()
    Report(benchmark="many", figures={f"figure_{i}": i for i in range(50)}).conclude(Console(file=out, width=40))
    assert len(out.getvalue().splitlines()) == 1


def test_nearest_orders_by_dot_product_and_leaves_the_query_out() -> None:
    vectors = np.array([[1, 0], [0.8, 0.6], [0, 1], [-1, 0]], np.float32)
    assert nearest(vectors[:1], vectors, 3).tolist() == [[0, 1, 2]]
    assert nearest(vectors[:1], vectors, 3, leave_out=np.array([0])).tolist() == [[1, 2, 3]]


def test_agreement_counts_each_attribute() -> None:
    # The query and its ten neighbours, of which 9 share the pattern, 5 the colour, 3 the shape.
    words = np.array(
        [("plain", "red", "star")]
        + [("plain" if i < 9 else "dotted", "red" if i < 5 else "blue", "star" if i < 3 else "ring") for i in range(10)]
    )
    vectors = np.ones((11, 2), np.float32)
    assert agreement(vectors, words, 1) == {"pattern": 0.9, "colour": 0.5, "shape": 0.3, "all three": 0.3}


def test_text_precision_allows_for_captions_that_few_pictures_fit() -> None:
    every = captions()
    assert every.shape == (320, 3)
    texts = np.eye(320, dtype=np.float32)
    # Two pictures for each of the first two captions; one of the second's lies elsewhere.
    words = every[[0, 0, 1, 1]]
    assert text_precision(texts, texts[[0, 0, 1, 1]], words) == 1.0
    assert text_precision(texts, texts[[0, 0, 1, 5]], words) == pytest.approx((1.0 + 0.5) / 2)
