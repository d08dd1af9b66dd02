"""Charts of a benchmark whose acceptance is given: speed-up against alpha, and against what the target spends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr_sglang.bench.budget import Spent, spent
from lr_sglang.results.charts import MARKERS, legend_below, new_figure, whiskers
from lr_sglang.results.plots import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, draw_each
from lr_sglang.results.report import Report
from lr_sglang.results.store import write_whole, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)
MAX_LINES = len(COLOURS)


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
    figure, axes = new_figure(8)
    lines = _lines(known, lambda one: (one.depth, one.concurrency))
    for number, ((depth, at_once), of) in enumerate(lines.items()):
        of.sort(key=lambda one: one.share or 0.0)
        places, colour = [(one.share or 0.0, one.speedup) for one in of], COLOURS[number]
        label = f"depth {depth}" + (f", {at_once} at once" if len({key[1] for key in lines}) > 1 else "")
        whiskers(axes, places, color=colour, marker=MARKERS[number], label=label)
        formula = f"{label}, the paper's formula"
        axes.plot([x for x, _ in places], _paper(of), color=colour, linestyle=":", label=formula)
    _frame(axes, [one.speedup.value for one in known] + _paper(known))
    axes.set(xlabel="share of steps that are accepted", ylabel="speed-up, tokens/s\nover no lookahead")
    axes.set_title("Speed-up against acceptance")
    legend_below(figure, axes)
    return figure


def budget(points: list[Spent]) -> Figure | None:
    """Speed-up against the tokens that the target spends, a line an acceptance rate; the numbers are budgets M."""
    if len({one.budget for one in points}) < 2:
        return None
    figure, axes = new_figure(8)
    lines = _lines(points, lambda one: (one.share, one.concurrency))
    for number, ((share, at_once), of) in enumerate(lines.items()):
        of.sort(key=lambda one: one.budget)
        label = "measured" if share is None else f"alpha {share:g}"
        label += f", {at_once} at once" if len({key[1] for key in lines}) > 1 else ""
        places = [(one.spent, one.speedup) for one in of]
        whiskers(axes, places, color=COLOURS[number], marker=MARKERS[number], label=label)
        for one in of:
            axes.annotate(
                str(one.budget), (one.spent, one.speedup.value), (5, 5), textcoords="offset points", fontsize=10
            )
    _frame(axes, [one.speedup.value for one in points])
    axes.set(xlabel="tokens of the target spent for each one delivered", ylabel="speed-up, tokens/s\nover no lookahead")
    axes.set_title("What the parallel budget M buys (the numbers beside the points)")
    legend_below(figure, axes)
    return figure


def _frame(axes: Axes, values: list[float]) -> None:
    """Room for all values; intervals of very few questions may go on above."""
    axes.axhline(1, color="#333333", linewidth=1)
    axes.set_ylim(0, 1.35 * max(1.0, *(value for value in values if value == value)))


def _lines(points: Iterable[Spent], key: Callable[[Spent], Any]) -> dict[Any, list[Spent]]:
    """Points by line; where there are too many, those with the most points, and of these the first."""
    found: dict[Hashable, list[Spent]] = defaultdict(list)
    for one in points:
        found[key(one)].append(one)
    kept = sorted(found, key=lambda name: -len(found[name]))[:MAX_LINES]
    return {name: of for name, of in found.items() if name in kept}


def _paper(of: list[Spent]) -> list[float]:
    return [one.expected.paper if one.expected else float("nan") for one in of]
