"""Charts of what was varied: depth beside the formulas, the token layer's draft, concurrency."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lr_sglang.config import Schedule
from lr_sglang.errors import ConfigError
from lr_sglang.results.charts import MAX_BARS, MAX_PANELS, legend_below, new_figure, whiskers
from lr_sglang.results.collection import Group
from lr_sglang.results.expected import Expected
from lr_sglang.results.measures import Measures
from lr_sglang.results.plots import look
from lr_sglang.results.report import Report
from lr_sglang.results.statistics import Estimate
from lr_sglang.theory import Case

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = dict[tuple[str, str], list[tuple[int, Estimate]]]  # by mode and name: concurrency and tokens/s of an answer


def depth(report: Report) -> Figure | None:
    """Speed-up against depth, and what the formulas expect of the measured numbers."""
    from matplotlib.ticker import MaxNLocator

    points = [
        (m, e)
        for m, e in zip(report.measures, report.expected, strict=True)
        if e is not None and e.measured is not None and isinstance(m.group.value("depth"), int)
    ]
    panels = _panels(points)
    if not panels:
        return None
    figure, grid = _grid(len(panels))
    for axes, (task, of) in zip(grid, panels.items(), strict=True):
        for mode in dict.fromkeys(m.group.mode for m, _ in of):
            colour, marker, _ = look(mode)
            mine = [(int(m.group.value("depth")), m, e) for m, e in of if m.group.mode == mode]
            mine.sort(key=lambda one: one[0])
            over = [(d, m.over_sd if mode == "lookahead+sd" and m.over_sd else m.speed) for d, m, _ in mine]
            shown = [(d, speed.tokens) for d, speed in over if speed is not None]
            if shown:
                whiskers(axes, shown, fmt=marker, color=colour, label=f"{mode}, measured")
            deepest = max(8, *(d for d, _, _ in mine))
            depths = range(1, deepest + 1)
            papers, ours = _curves(mine, depths)
            axes.plot(depths, papers, color=colour, linestyle=":", label=f"{mode}, the paper's formula")
            axes.plot(depths, ours, color=colour, label=f"{mode}, with verdicts, ends, slow-down")
        axes.axhline(1, color="#333333", linewidth=1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(title=task, xlabel="depth (steps ahead)")
        axes.set_ylim(bottom=0)
    grid[0].set_ylabel("speed-up, tokens/s\nover no lookahead")
    legend_below(figure, grid[0])
    figure.suptitle("Speed-up against depth: measured and expected", fontsize=13)
    return figure


def _curves(mine: Sequence[tuple[int, Measures, Expected]], depths: Sequence[int]) -> tuple[list[float], list[float]]:
    """The paper's formula and ours, with the means of what was measured at all depths."""

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    alpha, c1 = mean([e.alpha for _, _, e in mine]), mean([e.c1 for _, _, e in mine])
    schedule: Schedule = "sync" if mine[0][1].group.value("schedule") == "sync" else "async"
    judge = mean([e.verdict for _, _, e in mine])
    steps = round(mean([e.steps for _, _, e in mine]))
    slower = [e.slower for _, _, e in mine if e.slower]
    try:
        ours = Case(alpha, c1, judge, mean(slower) if slower else 1.0, steps=steps)
        return [Case(alpha, c1).speedup(schedule, d) for d in depths], [ours.speedup(schedule, d) for d in depths]
    except ConfigError:
        return [float("nan")] * len(depths), [float("nan")] * len(depths)


def sd_tokens(report: Report) -> Figure | None:
    """Speed-up against the token layer's drafted tokens, with and without lookahead (the paper's Figures 2 and 3)."""
    alone = min(m.group.concurrency for m in report.measures)
    points = [(m.group, m.speed.tokens) for m in report.measures if m.speed and m.group.concurrency == alone]
    swept = {group.value("sd tokens") for group, _ in points if group.mode.endswith("sd")} - {None}
    if len(swept) < 2:
        return None
    figure, axes = new_figure(8)
    for task in report.collection.tasks:
        several = f"{task}: " if len(report.collection.tasks) > 1 else ""
        for mode, modes in (("sd", ("sd",)), ("lookahead+sd", ("lookahead", "lookahead+sd"))):
            at = _by_tokens([(g, e) for g, e in points if g.task == task and g.mode in modes])
            if not at:
                continue
            if mode == "sd":  # no drafted token is what it is compared with
                at = {0: Estimate(1.0, None, None, 0, 0), **at}
            colour, marker, _ = look(mode)
            whiskers(axes, list(at.items()), color=colour, marker=marker, label=f"{several}{mode}")
    axes.axhline(1, color="#333333", linewidth=1)
    axes.set(xlabel="drafted tokens per verification", ylabel="speed-up, tokens/s\nover autoregressive")
    axes.set_title("Speed-up against the token layer's draft, with and without lookahead")
    legend_below(figure, axes)
    return figure


def _by_tokens(points: Sequence[tuple[Group, Estimate]]) -> dict[int, Estimate]:
    """Speed-ups by drafted tokens, where their number is known; where more was varied, the fastest's."""
    found: dict[int, Estimate] = {}
    for group, speed in sorted(points, key=lambda point: point[1].value):
        tokens = group.value("sd tokens") if group.mode.endswith("sd") else 0
        if tokens is not None:
            found[int(tokens)] = speed
    return dict(sorted(found.items()))


def concurrency(report: Report) -> Figure | None:
    """Throughput against how many answers are made at a time."""
    if len({m.group.concurrency for m in report.measures}) < 2:
        return None
    figure, axes = new_figure(8)
    series: Series = defaultdict(list)
    for m in report.measures:
        if m.rate is not None:
            words = [w for w in m.group.label.split(", ") if w and not w.endswith(" at once")]
            name = ", ".join([f"{m.group.task} {m.group.mode}", *words])
            series[m.group.mode, name].append((m.group.concurrency, m.rate))
    for (mode, name), points in _fewer(series).items():
        points.sort(key=lambda point: point[0])
        colour, marker, _ = look(mode)
        whiskers(axes, [(n, e.scaled(n)) for n, e in points], color=colour, marker=marker, label=name)
    ticks = sorted({n for points in series.values() for n, _ in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set(xlabel="answers at a time", ylabel="tokens/s of all answers\n(while all are at work)", title="Throughput")
    legend_below(figure, axes)
    return figure


def _fewer(series: Series) -> Series:
    """All, if they can be told apart; else of every task and mode the one with the highest throughput."""
    if len(series) <= MAX_BARS:
        return series
    best: dict[str, tuple[float, tuple[str, str]]] = {}
    for name, points in series.items():
        most = max(n * e.value for n, e in points)
        who = name[1].split(", ")[0]
        best[who] = max(best.get(who, (0.0, name)), (most, name))
    return {name: series[name] for _, name in best.values()}


def _panels(points: Sequence[tuple[Measures, Expected]]) -> dict[str, list[tuple[Measures, Expected]]]:
    """By task, at the least concurrency; at most four, which can be read beside each other."""
    panels: dict[str, list[tuple[Measures, Expected]]] = defaultdict(list)
    alone = min((m.group.concurrency for m, _ in points), default=1)
    for m, e in points:
        if m.group.concurrency == alone:
            panels[m.group.task].append((m, e))
    return dict(list(panels.items())[:MAX_PANELS])


def _grid(columns: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(8.5, 4.4 * columns), 5), layout="constrained")
    return figure, list(figure.subplots(1, columns, sharey=True, squeeze=False)[0])
