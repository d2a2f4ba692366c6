"""Plots CPU time of a query against recall."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.index.race import Point, Standing

_COLOURS = ("#0b6e4f", "#6fbf9b", "#777777", "#c8553d", "#3d5a98", "#b8860b")
_TICKS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
_BEST = 0.9999  # end of the scale, also for a recall of 1


def draw(standings: Mapping[str, Sequence[Standing]], path: Path) -> None:
    """Draw one panel per set, in the format given by the suffix of `path`."""
    figure = Figure(figsize=(5.6 * len(standings), 4.6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(standings), squeeze=False)[0]
    for axes, (name, of_set) in zip(panels, standings.items(), strict=True):
        _panel(axes, of_set)
        axes.set_title(name, fontsize=11)
    panels[0].set_ylabel("µs of CPU a query, in a batch on one thread")
    panels[0].legend(frameon=False, fontsize=9, loc="best")
    figure.savefig(path, dpi=150)


def _panel(axes: Axes, standings: Sequence[Standing]) -> None:
    for standing, colour in zip(standings, _COLOURS, strict=False):
        front = _front(standing.curve)
        positions = [_position(point.recall) for point in front]
        costs = [point.cpu_us for point in front]
        axes.plot(positions, costs, "o-", color=colour, markersize=3.5, linewidth=1.6, label=standing.name)
        axes.plot(_position(standing.point.recall), standing.point.cpu_us, "*", color=colour, markersize=13, zorder=3)
    axes.axvline(_position(0.99), color="#bbbbbb", linewidth=1, zorder=0)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda cost, _: f"{cost:,.0f}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda cost, _: f"{cost:,.0f}"))
    axes.set_xlim(_position(0.88), _position(_BEST) + 0.1)
    axes.set_xticks([_position(tick) for tick in (*_TICKS, _BEST)], [*(f"{tick:g}" for tick in _TICKS), "1"])
    axes.set_xlabel("recall@10   (★ operating point: 0.99 or more, if reached)")
    axes.grid(True, which="major", color="#eeeeee")
    axes.spines[["top", "right"]].set_visible(False)


def _position(recall: float) -> float:
    """Position on an axis where each tenfold reduction of errors has the same length."""
    return float(-np.log10(1 - min(recall, _BEST)))


def _front(curve: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both recall and cost, sorted by recall."""
    front: list[Point] = []
    for point in sorted(curve, key=lambda point: (-point.recall, point.cpu_us)):
        if not front or point.cpu_us < front[-1].cpu_us:
            front.append(point)
    return front[::-1]
