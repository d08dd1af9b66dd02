"""Charts of a report: speed-ups, acceptance, where the time went, and what was varied: depth,
tokens, concurrency.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

from lr_sglang.config import Schedule
from lr_sglang.errors import ConfigError
from lr_sglang.results import accounting, plots
from lr_sglang.results.expected import Expected
from lr_sglang.results.measures import Measures
from lr_sglang.results.report import Report
from lr_sglang.results.statistics import Estimate
from lr_sglang.results.timeline import timeline
from lr_sglang.theory.planner import Case

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BARS = 8  # of a task
MAX_LINES = 4  # in a panel, with intervals
MAX_PANELS = 4  # of tasks, in a row
LEAST_JUDGED = 5  # a share of fewer steps is noise
_ONE: Any = {"color": "#333333", "linewidth": 1}  # the line of no speed-up

Item = TypeVar("Item")


def draw(report: Report, folder: Path) -> list[Path]:
    """Draws every plot for which the report has figures; returns the files.

    Raises:
        SetupError: matplotlib is not installed.
        RecordError: the folder cannot be written.
    """
    makers = {
        **{"speedup": speedup, "depth": depth, "sd_tokens": sd_tokens},
        **{
            "concurrency": concurrency,
            "acceptance": acceptance,
            "time": time,
            "timeline": timeline,
        },
    }
    return plots.draw_each(makers, report, folder, report.warning)


def _by(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    found: dict[Any, list[Item]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


def _few(measures: Sequence[Measures], most: int) -> list[Measures]:
    """All groups if there are at most ``most``, else the fastest variant of every mode."""
    if len(measures) <= most:
        return list(measures)
    variants = _by(measures, lambda m: m.group.mode)
    return [
        max(of, key=lambda m: m.speed.tokens.value if m.speed else 0.0) for of in variants.values()
    ]


def _shades(measures: Sequence[Measures]) -> dict[str, Any]:
    """The colour of each group by its name; each further variant of a mode is lighter."""
    from matplotlib.colors import to_rgb

    shades: dict[str, Any] = {}
    seen: dict[str, int] = defaultdict(int)
    for name, mode in {m.group.name: m.group.mode for m in measures}.items():
        share = 0.75 ** seen[mode]
        shades[name] = tuple(1 - share * (1 - part) for part in to_rgb(plots.look(mode)[0]))
        seen[mode] += 1
    return shades


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def speedup(report: Report) -> Figure | None:
    """Speed-up by task and mode."""
    by_task = _by((m for m in report.measures if m.speed), lambda m: m.group.task)
    chosen = {task: _few(of, MAX_BARS) for task, of in by_task.items()}
    everything = [m for of in chosen.values() for m in of]
    if not everything:
        return None
    shades, places = _shades(everything), {task: at for at, task in enumerate(chosen)}
    figure, axes = plots.new_figure(max(6.4, 1.6 + 0.55 * (len(everything) + len(chosen))))
    width = 0.8 / max(3, len(shades))
    for number, (name, colour) in enumerate(shades.items()):
        found = [m for m in everything if m.group.name == name]
        shift = (number - (len(shades) - 1) / 2) * width
        points = [(places[m.group.task] + shift, m.speed.tokens) for m in found if m.speed]
        style = {
            "color": colour,
            "hatch": plots.look(found[0].group.mode)[2],
            "edgecolor": "white",
            "linewidth": 0,
        }
        axes.bar(
            [at for at, _ in points],
            [e.value for _, e in points],
            width * 0.92,
            label=name,
            **style,
        )
        plots.whiskers(axes, points, fmt="none", ecolor="#333333", linewidth=1.2)
        for at, e in points:
            top = (at, e.high if e.high is not None else e.value)
            axes.annotate(
                f"{e.value:.2f}", top, (0, 3), textcoords="offset points", ha="center", fontsize=10
            )
    axes.axhline(1, **_ONE)
    axes.set_xticks(range(len(chosen)), list(chosen))
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.12)
    what = "by task and mode" if len(shades) > 1 else f"of {everything[0].group.name} by task"
    axes.set(
        ylabel="speed-up, tokens/s\nover autoregressive", title=f"Speed-up {what} (95 % intervals)"
    )
    axes.set_xlim(-0.6, len(chosen) - 0.4)
    plots.legend_below(figure, axes)
    return figure


def acceptance(report: Report) -> Figure | None:
    """Acceptance by position, in the cycle and in the answer; tasks beside each other."""
    panels = list(_by((m for m in report.measures if m.alpha), lambda m: m.group.task).items())[
        :MAX_PANELS
    ]
    if not panels:
        return None
    several = len(panels) > 1
    size = max(9.0, 4.0 * len(panels)), 7.4 if several else 4.8
    figure, grid = plots.new_grid(*size, 2 if several else 1, len(panels) if several else 2)
    handles: dict[str, Any] = {}
    for (task, of), (left, right) in zip(panels, grid.T if several else grid, strict=True):
        mine = _few(of, MAX_LINES)
        shades = _shades(mine)
        for number, m in enumerate(mine):
            shift = (number - (len(mine) - 1) / 2) * 0.1
            marker = (
                plots.look(m.group.mode)[1]
                if not m.group.label
                else plots.MARKERS[number % len(plots.MARKERS)]
            )
            for axes, estimates, first in ((left, m.runs, 0), (right, m.positions, 1)):
                shown = [
                    (n + first + shift, e)
                    for n, e in enumerate(estimates)
                    if e.samples >= LEAST_JUDGED
                ]
                style = {
                    "color": shades[m.group.name],
                    "marker": marker,
                    "capsize": 2,
                    "elinewidth": 1,
                }
                handles.setdefault(m.group.name, plots.whiskers(axes, shown, **style))
        left.set(xlabel="steps accepted before, in the same cycle", title=task if several else "")
        right.set(xlabel="step of the answer")
        for axes in (left, right):
            axes.set_ylim(0, 1.03)
            _whole_numbers(axes)
    figure.supylabel("share of judged steps accepted", fontsize=12)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=3, fontsize=11
    )
    figure.suptitle("Acceptance by position (95 % intervals)", fontsize=13)
    return figure


def time(report: Report) -> Figure | None:
    """Where the time of an answer went."""
    shown = [
        m for m in report.measures if m.time["wall"] and any(r["branches"] for r in m.group.ended)
    ][:24]
    if not shown:
        return None
    figure, axes = plots.new_figure(8.5, max(2.6, 1.6 + 0.42 * len(shown)))
    tasks = len(report.collection.tasks) > 1
    names = [f"{m.group.task}: {m.group.name}" if tasks else m.group.name for m in shown]
    lefts, least = (
        [0.0] * len(shown),
        1e-3 * sum(m.time["wall"] / len(m.group.ended) for m in shown),
    )
    for part, meaning in accounting.MEANING.items():
        seconds = [m.time["parts"][part] / len(m.group.ended) for m in shown]
        if sum(seconds) >= least:
            style: Any = {**plots.PART_LOOKS[part], "edgecolor": "white", "linewidth": 0}
            axes.barh(range(len(shown)), seconds, 0.68, left=lefts, label=meaning, **style)
            lefts = [left + more for left, more in zip(lefts, seconds, strict=True)]
    axes.set_yticks(range(len(shown)), names)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.margins(x=0.02)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="seconds of an answer, on average")
    figure.suptitle("Where the time went, along the critical path", fontsize=13)
    plots.legend_below(figure, axes)
    return figure


def depth(report: Report) -> Figure | None:
    """Measured and expected speed-up against depth, at the lowest concurrency."""
    known = [m for m in report.measures if m.expected and m.expected.measured is not None]
    known = [m for m in known if isinstance(m.group.value("depth"), int)]
    alone = min((m.group.concurrency for m in known), default=1)
    by_task = _by((m for m in known if m.group.concurrency == alone), lambda m: m.group.task)
    panels = list(by_task.items())[:MAX_PANELS]
    if not panels:
        return None
    figure, (grid,) = plots.new_grid(max(8.5, 4.4 * len(panels)), 5, 1, len(panels))
    for axes, (task, of) in zip(grid, panels, strict=True):
        for mode, mine in _by(of, lambda m: m.group.mode).items():
            colour, marker, _ = plots.look(mode)
            mine.sort(key=lambda m: int(m.group.value("depth")))
            places = [int(m.group.value("depth")) for m in mine]
            over = [m.over_sd if mode == "lookahead+sd" and m.over_sd else m.speed for m in mine]
            if shown := [
                (d, speed.tokens)
                for d, speed in zip(places, over, strict=True)
                if speed is not None
            ]:
                plots.whiskers(axes, shown, fmt=marker, color=colour, label=f"{mode}, measured")
            depths = range(1, max(8, *places) + 1)
            papers, ours = _curves(
                [m.expected for m in mine if m.expected], mine[0].group.value("schedule"), depths
            )
            axes.plot(
                depths, papers, color=colour, linestyle=":", label=f"{mode}, the paper's formula"
            )
            axes.plot(depths, ours, color=colour, label=f"{mode}, with verdicts, ends, slow-down")
        axes.axhline(1, **_ONE)
        _whole_numbers(axes)
        axes.set(title=task, xlabel="depth (steps ahead)")
        axes.set_ylim(bottom=0)
    grid[0].set_ylabel("speed-up, tokens/s\nover no lookahead")
    plots.legend_below(figure, grid[0])
    figure.suptitle("Speed-up against depth: measured and expected", fontsize=13)
    return figure


def _curves(
    of: Sequence[Expected], name: Any, depths: Sequence[int]
) -> tuple[list[float], list[float]]:
    """The curves of the paper's formula and of ours, from the means of the values measured at all
    depths.
    """
    schedule: Schedule = "sync" if name == "sync" else "async"
    alpha, c1, judge = (
        fmean(e.alpha for e in of),
        fmean(e.c1 for e in of),
        fmean(e.verdict for e in of),
    )
    slower, steps = [e.slower for e in of if e.slower], round(fmean(e.steps for e in of))
    try:
        ours = Case(alpha, c1, judge, fmean(slower) if slower else 1.0, steps=steps)
        return [Case(alpha, c1).speedup(schedule, d) for d in depths], [
            ours.speedup(schedule, d) for d in depths
        ]
    except ConfigError:
        return [float("nan")] * len(depths), [float("nan")] * len(depths)


def sd_tokens(report: Report) -> Figure | None:
    """Speed-up against the token layer's drafted tokens, with and without lookahead (the paper's
    Figures 2 and 3).
    """
    alone, tasks = min(m.group.concurrency for m in report.measures), report.collection.tasks
    found = [m for m in report.measures if m.speed and m.group.concurrency == alone]
    tokens = {
        m.group.name: m.group.value("sd tokens") if m.group.mode.endswith("sd") else 0
        for m in found
    }
    if len({tokens[m.group.name] for m in found if m.group.mode.endswith("sd")} - {None}) < 2:
        return None
    figure, axes = plots.new_figure(8)
    for task in tasks:
        for mode, modes in (("sd", ("sd",)), ("lookahead+sd", ("lookahead", "lookahead+sd"))):
            of = [
                m for m in found if (m.group.task, m.group.mode) in [(task, name) for name in modes]
            ]
            # By number of drafted tokens, if known; of several variants with the same number, the
            # fastest.
            speeds = sorted(
                ((tokens[m.group.name], m.speed.tokens) for m in of if m.speed),
                key=lambda one: one[1].value,
            )
            at = {int(number): speed for number, speed in speeds if number is not None}
            if not at:
                continue
            if mode == "sd":  # 0 drafted tokens: plain decoding
                at = {0: Estimate(1.0, None, None, 0, 0), **at}
            colour, marker, _ = plots.look(mode)
            label = f"{task}: {mode}" if len(tasks) > 1 else mode
            plots.whiskers(
                axes,
                sorted(at.items(), key=lambda one: one[0]),
                color=colour,
                marker=marker,
                label=label,
            )
    axes.axhline(1, **_ONE)
    axes.set(
        xlabel="drafted tokens per verification", ylabel="speed-up, tokens/s\nover autoregressive"
    )
    axes.set_title("Speed-up against the token layer's draft, with and without lookahead")
    plots.legend_below(figure, axes)
    return figure


def concurrency(report: Report) -> Figure | None:
    """Throughput against how many answers are made at a time."""
    ticks = sorted({m.group.concurrency for m in report.measures if m.rate})
    if len({m.group.concurrency for m in report.measures}) < 2:
        return None
    figure, axes = plots.new_figure(8)
    series: dict[tuple[str, str, str], list[tuple[int, Estimate]]] = defaultdict(list)
    for m in report.measures:
        if m.rate is not None:
            words = [w for w in m.group.label.split(", ") if w and not w.endswith(" at once")]
            who = f"{m.group.task} {m.group.mode}"
            point = m.group.concurrency, m.rate.scaled(m.group.concurrency)
            series[who, m.group.mode, ", ".join([who, *words])].append(point)
    shown = list(series)
    if len(shown) > MAX_BARS:  # for every task and mode, the variant with the highest throughput
        shown = [
            max(of, key=lambda key: max(e.value for _, e in series[key]))
            for of in _by(shown, lambda k: k[0]).values()
        ]
    for key in shown:
        colour, marker, _ = plots.look(key[1])
        points = sorted(series[key], key=lambda point: point[0])
        plots.whiskers(axes, points, color=colour, marker=marker, label=key[2])
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set(
        xlabel="answers at a time",
        ylabel="tokens/s of all answers\n(while all are at work)",
        title="Throughput",
    )
    plots.legend_below(figure, axes)
    return figure
