"""Charts of a benchmark whose acceptance is given: speed-up against alpha, and against what the target spends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lr_sglang.bench.budget import Spent, spent
from lr_sglang.results.plots import (
    BLUE,
    GREEN,
    MARKERS,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    draw_each,
    legend_below,
    new_figure,
    whiskers,
)
from lr_sglang.results.report import Report
from lr_sglang.results.store import write_whole, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)


def draw(report: Report, folder: Path) -> list[Path]:
    """Draws both, and writes their figures to budget.json; returns the files.

    Raises:
        SetupError: matplotlib is not there.
        RecordError: the folder cannot be written.
    """
    points, path = spent(report), folder / "budget.json"
    made = draw_each({"alpha": alpha, "budget": budget}, points, folder, report.warning)
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, {"warning": report.warning, "points": [asdict(one) for one in points]})
    return [*made, path]


def alpha(points: list[Spent]) -> Figure | None:
    """Speed-up against the acceptance rate, a line a depth, with what the formulas expect."""
    known = [one for one in points if one.share is not None]
    if len({one.share for one in known}) < 2:
        return None
    figure, axes = _axes("Speed-up against acceptance", "share of steps that are accepted", known, formulas=True)
    for number, (label, of) in enumerate(_lines(known, lambda one: f"depth {one.depth}").items()):
        of.sort(key=lambda one: one.share or 0.0)
        places, colour = [(one.share or 0.0, one.speedup) for one in of], COLOURS[number]
        whiskers(axes, places, color=colour, marker=MARKERS[number], label=label)
        expected = f"{label}, the paper's formula"
        axes.plot([x for x, _ in places], _paper(of), color=colour, linestyle=":", label=expected)
    legend_below(figure, axes)
    return figure


def budget(points: list[Spent]) -> Figure | None:
    """Speed-up against the tokens that the target spends, a line an acceptance rate; the numbers are budgets M."""
    if len({one.budget for one in points}) < 2:
        return None
    title = "What the parallel budget M buys (the numbers beside the points)"
    figure, axes = _axes(title, "tokens of the target spent for each one delivered", points)
    lines = _lines(points, lambda one: "measured" if one.share is None else f"alpha {one.share:g}")
    for number, (label, of) in enumerate(lines.items()):
        of.sort(key=lambda one: one.budget)
        places = [(one.spent, one.speedup) for one in of]
        whiskers(axes, places, color=COLOURS[number], marker=MARKERS[number], label=label)
        for one in of:
            place, near = (one.spent, one.speedup.value), (5, 5)
            axes.annotate(str(one.budget), place, near, textcoords="offset points", fontsize=10)
    legend_below(figure, axes)
    return figure


def _axes(title: str, x: str, points: list[Spent], formulas: bool = False) -> tuple[Figure, Axes]:
    """Axes with room for all values; intervals of very few questions may go on above."""
    figure, axes = new_figure(8)
    values = [one.speedup.value for one in points] + (_paper(points) if formulas else [])
    axes.axhline(1, color="#333333", linewidth=1)
    axes.set_ylim(0, 1.35 * max(1.0, *(value for value in values if value == value)))
    axes.set(xlabel=x, ylabel="speed-up, tokens/s\nover no lookahead", title=title)
    return figure, axes


def _lines(points: list[Spent], label: Callable[[Spent], str]) -> dict[str, list[Spent]]:
    """Points by line; where there are too many, those with the most points, and of these the first."""
    several = len({one.concurrency for one in points}) > 1
    found: dict[str, list[Spent]] = defaultdict(list)
    for one in points:
        found[label(one) + (f", {one.concurrency} at once" if several else "")].append(one)
    kept = sorted(found, key=lambda name: -len(found[name]))[: len(COLOURS)]
    return {name: of for name, of in found.items() if name in kept}


def _paper(of: list[Spent]) -> list[float]:
    return [one.expected.paper if one.expected else float("nan") for one in of]
