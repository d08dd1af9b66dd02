"""Charts of a report: speed-ups, sweeps, acceptance, and where the time went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lr_sglang.results import accounting
from lr_sglang.results.measures import Measures
from lr_sglang.results.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, YELLOW, look
from lr_sglang.results.report import Report
from lr_sglang.results.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
MAX_BARS = 8  # beside each other, for a task
MAX_LINES = 4  # in a panel, with intervals
MAX_PANELS = 4  # of tasks, that can be read beside each other
LEAST_JUDGED = 5  # below that a share is noise
PARTS = dict(zip(accounting.PARTS, (BLUE, SKY, GREEN, ORANGE, YELLOW, PURPLE, GREY), strict=True))
HATCHES = dict(zip(accounting.PARTS, ("", "..", "//", "\\\\", "", "xx", ""), strict=True))


def speedup(report: Report) -> Figure | None:
    """Speed-up by task and mode."""
    tasks = report.collection.tasks
    chosen = {task: _few([m for m in report.measures if m.group.task == task and m.speed], MAX_BARS) for task in tasks}
    names = list(dict.fromkeys(m.group.name for of in chosen.values() for m in of))
    if not names:
        return None
    shown = [task for task in tasks if chosen[task]]
    figure, axes = new_figure(max(6.4, 1.6 + 0.55 * sum(len(chosen[task]) + 1 for task in shown)))
    width = 0.8 / max(3, len(names))
    shades = _shades(names, [m for of in chosen.values() for m in of])
    for number, name in enumerate(names):
        found = [(at, m) for at, task in enumerate(shown) for m in chosen[task] if m.group.name == name]
        places = [at + (number - (len(names) - 1) / 2) * width for at, _ in found]
        estimates = [m.speed.tokens for _, m in found if m.speed]
        heights, _, hatch = [e.value for e in estimates], *look(found[0][1].group.mode)[1:]
        axes.bar(
            places, heights, width * 0.92, color=shades[name], hatch=hatch, edgecolor="white", label=name, linewidth=0
        )
        axes.errorbar(places, heights, errors_of(estimates), fmt="none", ecolor="#333333", capsize=3, linewidth=1.2)
        for place, e in zip(places, estimates, strict=True):
            top = e.high if e.high is not None else e.value
            axes.annotate(f"{e.value:.2f}", (place, top), (0, 3), textcoords="offset points", ha="center", fontsize=10)
    axes.axhline(1, color="#333333", linewidth=1)
    axes.set_xticks(range(len(shown)), shown)
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.12)
    what = "by task and mode" if len(names) > 1 else f"of {names[0]} by task"
    axes.set(ylabel="speed-up, tokens/s\nover autoregressive", title=f"Speed-up {what} (95 % intervals)")
    axes.set_xlim(-0.6, len(shown) - 0.4)
    legend_below(figure, axes)
    return figure


def _few(measures: Sequence[Measures], most: int) -> list[Measures]:
    """All, if they can be shown beside each other; else of every mode that was swept the fastest variant."""
    if len(measures) <= most:
        return list(measures)
    variants: dict[str, list[Measures]] = defaultdict(list)
    for m in measures:
        variants[m.group.mode].append(m)
    return [max(of, key=lambda m: m.speed.tokens.value if m.speed else 0.0) for of in variants.values()]


def _shades(names: Sequence[str], measures: Sequence[Measures]) -> dict[str, Any]:
    """A mode's colour, lighter for each further variant of it."""
    from matplotlib.colors import to_rgb

    modes = {m.group.name: m.group.mode for m in measures}
    shades: dict[str, Any] = {}
    seen: dict[str, int] = defaultdict(int)
    for name in names:
        share = 0.75 ** seen[modes[name]]
        shades[name] = tuple(1 - share * (1 - part) for part in to_rgb(look(modes[name])[0]))
        seen[modes[name]] += 1
    return shades


def acceptance(report: Report) -> Figure | None:
    """Acceptance by position, in the cycle and in the answer; tasks beside each other."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    ahead = [m for m in report.measures if m.alpha]
    tasks = list(dict.fromkeys(m.group.task for m in ahead))[:MAX_PANELS]
    if not tasks:
        return None
    several = len(tasks) > 1
    figure = Figure(figsize=(max(9.0, 4.0 * len(tasks)), 7.4 if several else 4.8), layout="constrained")
    grid = figure.subplots(2 if several else 1, len(tasks) if several else 2, sharey=True, squeeze=False)
    if several:
        grid = grid.T
    handles: dict[str, Any] = {}
    for task, (left, right) in zip(tasks, grid, strict=True):
        mine = _few([m for m in ahead if m.group.task == task], MAX_LINES)
        shades = _shades([m.group.name for m in mine], mine)
        for number, m in enumerate(mine):
            shift = (number - (len(mine) - 1) / 2) * 0.1
            marker = look(m.group.mode)[1] if not m.group.label else MARKERS[number % len(MARKERS)]
            for axes, estimates, first in ((left, m.runs, 0), (right, m.positions, 1)):
                shown = [(n + first + shift, e) for n, e in enumerate(estimates) if e.samples >= LEAST_JUDGED]
                style = {"color": shades[m.group.name], "marker": marker, "capsize": 2, "elinewidth": 1}
                handles.setdefault(m.group.name, whiskers(axes, shown, **style))
        left.set(xlabel="steps accepted before, in the same cycle", title=task if several else "")
        right.set(xlabel="step of the answer")
        for axes in (left, right):
            axes.set_ylim(0, 1.03)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.supylabel("share of judged steps accepted", fontsize=12)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3, fontsize=11)
    figure.suptitle("Acceptance by position (95 % intervals)", fontsize=13)
    return figure


def time(report: Report) -> Figure | None:
    """Where the time of an answer went."""
    shown = [m for m in report.measures if m.time["wall"] and any(r["branches"] for r in m.group.ended)][:24]
    if not shown:
        return None
    figure, axes = new_figure(8.5, max(2.6, 1.6 + 0.42 * len(shown)))
    tasks = len(report.collection.tasks) > 1
    names = [f"{m.group.task}: {m.group.name}" if tasks else m.group.name for m in shown]
    lefts = [0.0] * len(shown)
    for part in accounting.PARTS:
        seconds = [m.time["parts"][part] / len(m.group.ended) for m in shown]
        if sum(seconds) < 1e-3 * sum(m.time["wall"] / len(m.group.ended) for m in shown):
            continue
        label = accounting.MEANING[part]
        axes.barh(
            range(len(shown)),
            seconds,
            0.68,
            left=lefts,
            color=PARTS[part],
            hatch=HATCHES[part],
            edgecolor="white",
            linewidth=0,
            label=label,
        )
        lefts = [left + more for left, more in zip(lefts, seconds, strict=True)]
    axes.set_yticks(range(len(shown)), names)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.margins(x=0.02)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="seconds of an answer, on average")
    figure.suptitle("Where the time went, along the critical path", fontsize=13)
    legend_below(figure, axes)
    return figure


def new_figure(width: float, height: float = 4.5) -> tuple[Figure, Axes]:
    """Sizes are inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def whiskers(axes: Axes, points: Sequence[tuple[float, Estimate]], **style: Any) -> Any:
    """Draws estimates at their places, with their intervals."""
    places, estimates = [place for place, _ in points], [e for _, e in points]
    values = [e.value for e in estimates]
    return axes.errorbar(places, values, errors_of(estimates), **{"capsize": 3, **style})


def errors_of(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Lengths of the whiskers, down and up; none where there is no interval."""
    down = [0.0 if e.low is None else e.value - e.low for e in estimates]
    return [down, [0.0 if e.high is None else e.high - e.value for e in estimates]]


def legend_below(figure: Figure, axes: Axes) -> None:
    """Under the axes, in as many columns as there is room for, in a taller figure; none for one series."""
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) < 2:
        return
    room = int(figure.get_figwidth() * 13)
    labels = [label if len(label) < room - 8 else label[: room - 9] + "…" for label in labels]
    columns = min(len(handles), 4, max(1, room // (max(map(len, labels)) + 7)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=11)
    figure.set_figheight(figure.get_figheight() + 0.25 * (math.ceil(len(handles) / columns) - 1))
