"""The plots of a report, drawn by matplotlib (the extra ``plots``): speed-up by mode, by a swept
setting, and by acceptance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import nan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lr_sglang.errors import SetupError
from lr_sglang.results.collection import Collection, short
from lr_sglang.results.report import Measures, Report, measured
from lr_sglang.results.statistics import Estimate
from lr_sglang.results.store import writing
from lr_sglang.theory.judged import Case

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = ("png", "svg")
# Okabe and Ito's colours, which people of all kinds of colour vision tell apart.
SERIES_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#767676",
    "#000000",
)
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
MODE_COLOURS = {
    "autoregressive": "#767676",
    "sd": "#E69F00",
    "lookahead": "#0072B2",
    "lookahead+sd": "#009E73",
    "lossless": "#CC79A7",
}
STYLE: Any = {
    # Text stays text, and the file does not depend on the time.
    "svg.fonttype": "none",
    "svg.hashsalt": "lr-sglang",
    # A dollar sign in a model's name begins no formula.
    "text.parse_math": False,
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#d8d8d8",
    "legend.frameon": False,
}


def draw_plots(report: Report, folder: Path) -> list[Path]:
    """Draws every plot for which the report has figures; returns the files.

    A warning about the figures is drawn into the picture, because that may be passed on alone.

    Raises:
        SetupError: matplotlib is not installed.
        RecordError: the folder cannot be written.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise SetupError("plots need matplotlib", hint="pip install 'lr-sglang[plots]'") from error
    made = []
    words = report.warning[:1].upper() + report.warning[1:]
    with matplotlib.rc_context(STYLE):
        for name, figure in _figures(report):
            if words:
                figure.suptitle(words, fontsize=12, color="#a03000", wrap=True)
            for suffix in SUFFIXES:
                path = folder / f"{name}.{suffix}"
                undated: Any = {"Date" if suffix == "svg" else "Software": None}
                with writing(path, "give another --plots"):
                    folder.mkdir(parents=True, exist_ok=True)
                    figure.savefig(path, dpi=150, metadata=undated)
                figure.set_layout_engine("none")  # both files get the layout of the first
                made.append(path)
    return made


def _figures(report: Report) -> Iterator[tuple[str, Figure]]:
    fast = [m for m in report.measures if m.speed]
    if fast:
        yield "speedup", plot_modes(fast)
    for setting in swept(fast):
        yield f"by_{short(setting).replace(' ', '_')}", by_setting(fast, setting)
    if judged := [m for m in fast if m.alpha and m.acceptance[0] == "alpha"]:
        yield "by_acceptance", by_acceptance(judged, report.collection)


def _gain(m: Measures) -> Estimate:
    """The speed-up in tokens per second over the same token layer without lookahead, if measured,
    else over plain decoding.
    """
    found = m.over_sd or m.speed
    assert found is not None
    return found.tokens


def _new(width: float) -> tuple[Figure, Axes]:
    """A figure of one panel, in inches, with the line of no speed-up."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.axhline(1, color="#333333", linewidth=1)
    return figure, axes


def _whiskers(axes: Axes, points: Sequence[tuple[float, Estimate]], **style: Any) -> None:
    """Draws estimates with their intervals, if they have one."""
    places = [place for place, _ in points]
    axes.errorbar(places, [e.value for _, e in points], _ends(points), capsize=3, **style)


def _ends(points: Sequence[tuple[float, Estimate]]) -> list[list[float]]:
    """How far the intervals of estimates reach below and above them; NaN, of which matplotlib draws
    nothing, where there is none.
    """
    down = [nan if e.low is None else e.value - e.low for _, e in points]
    up = [nan if e.high is None else e.high - e.value for _, e in points]
    return [down, up]


def _intervals(estimates: Iterable[Estimate]) -> str:
    """What a title says of the intervals that are drawn."""
    known = [e.low is not None for e in estimates]
    if not any(known):
        return ""
    return (
        " (95 % intervals)" if all(known) else " (95 % intervals where there are enough questions)"
    )


def _legend(figure: Figure) -> None:
    (axes,) = figure.axes
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1:
        columns = 2 if max(map(len, labels)) < 40 else 1
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=11)
        rows = -(-len(handles) // columns)
        figure.set_figheight(figure.get_figheight() + 0.25 * rows)


def plot_modes(measures: Sequence[Measures]) -> Figure:
    """Speed-up by task and mode; of several variants of a mode the fastest."""
    fastest: dict[tuple[str, str], Measures] = {}
    for m in sorted(measures, key=lambda m: m.speed.tokens.value if m.speed else 0.0):
        fastest[m.group.method, m.group.task] = m
    tasks = list(dict.fromkeys(m.group.task for m in measures))
    names = list(dict.fromkeys(m.group.method for m in measures))
    width = 0.8 / max(3, len(names))
    figure, axes = _new(max(6.4, 1.6 + 0.55 * (len(names) + 1) * len(tasks)))
    for number, mode in enumerate(names):
        points = [
            (place + (number - (len(names) - 1) / 2) * width, best.speed.tokens)
            for place, task in enumerate(tasks)
            if (best := fastest.get((mode, task))) and best.speed
        ]
        style: Any = {"color": MODE_COLOURS.get(mode, "#D55E00"), "label": mode, "capsize": 3}
        values = [e.value for _, e in points]
        bars = axes.bar([at for at, _ in points], values, width * 0.92, yerr=_ends(points), **style)
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=10)
    axes.set_xticks(range(len(tasks)), tasks)
    axes.set_xlim(-0.6, len(tasks) - 0.4)
    axes.margins(y=0.12)
    axes.set(ylabel="speed-up, tokens/s\nover autoregressive")
    drawn = [m.speed.tokens for m in fastest.values() if m.speed]
    axes.set_title(f"Speed-up by task and mode{_intervals(drawn)}")
    _legend(figure)
    return figure


def swept(measures: Sequence[Measures]) -> list[str]:
    """The settings of the groups' labels whose values are numbers."""
    found = []
    labels = {word for m in measures for word in m.group.label.split(", ")}
    names = dict.fromkeys(name for m in measures for name in m.group.settings)
    for name in ("concurrency", *names):
        told = f"{short(name)} " if name in names else " at once"
        values = {_value(m, name) for m in measures if any(told in word for word in labels)}
        if len(values - {None}) > 1:
            found.append(name)
    return found


def _value(m: Measures, setting: str) -> float | None:
    value = m.group.concurrency if setting == "concurrency" else m.group.settings.get(setting)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def by_setting(measures: Sequence[Measures], setting: str) -> Figure:
    """Speed-up against a setting: a line for each task, mode and other settings; dotted what the
    formulas expect.
    """
    said = short(setting)

    def line(m: Measures) -> str:
        own = (f"{said} ", f"{m.group.concurrency} at once" if setting == "concurrency" else " ")
        rest = [w for w in m.group.label.split(", ") if w and not w.startswith(own)]
        return ", ".join([f"{m.group.task} {m.group.method}", *rest])

    figure, axes = _new(8)
    known = [m for m in measures if _value(m, setting) is not None]
    dotted = False
    for name, of, style in _lines(known, line):
        of.sort(key=lambda m: _value(m, setting) or 0.0)
        points = [(_value(m, setting) or 0.0, _gain(m)) for m in of]
        _whiskers(axes, points, label=name, **style)
        expected = [m.expected.speedup for m in of if m.expected]
        if len(expected) == len(of):
            axes.plot([place for place, _ in points], expected, color=style["color"], linestyle=":")
            dotted = True
    axes.set_ylim(bottom=0)
    axes.set(xlabel=said, ylabel="speed-up, tokens/s\nover no lookahead")
    axes.set_title(
        f"Speed-up against {said}{' (dotted: expected by the formulas)' if dotted else ''}"
    )
    _legend(figure)
    return figure


def by_acceptance(measures: Sequence[Measures], collection: Collection) -> Figure:
    """Speed-up against acceptance, with the paper's formula for each schedule and depth at the
    measured c1.
    """
    figure, axes = _new(8)
    for name, of, style in _lines(
        measures, lambda m: f"{m.group.value('schedule')}, depth {m.group.value('depth')}"
    ):
        points = [(m.alpha.value, _gain(m)) for m in of if m.alpha]
        _whiskers(axes, points, linestyle="", label=name, **style)
        conditions = [found for m in of if (found := measured(collection, m.group))]
        known = [found.c1 for found in conditions if found.c1 < 1]
        if known:
            schedule = conditions[0].schedule
            depth = conditions[0].depth
            alphas = [n / 50 for n in range(51)]
            speeds = [Case(alpha, fmean(known)).speedup(schedule, depth) for alpha in alphas]
            axes.plot(alphas, speeds, color=style["color"], linestyle=":", label=f"{name}, formula")
    axes.set_xlim(-0.03, 1.03)  # so that a marker at 0 or 1 is whole
    axes.set_ylim(0, 1.3 * max(1.0, *(_gain(m).high or _gain(m).value for m in measures)))
    axes.set(xlabel="alpha (share of judged steps accepted)")
    axes.set_ylabel("speed-up, tokens/s\nover no lookahead")
    axes.set_title("Speed-up against acceptance")
    _legend(figure)
    return figure


def _lines(
    measures: Sequence[Measures], key: Callable[[Measures], str]
) -> Iterator[tuple[str, list[Measures], dict[str, Any]]]:
    """The longest lines of a plot: name, figures and style of each."""
    found: dict[str, list[Measures]] = defaultdict(list)
    for m in measures:
        found[key(m)].append(m)
    longest = sorted(found.items(), key=lambda line: -len(line[1]))
    for (name, of), colour, marker in zip(longest, SERIES_COLOURS, MARKERS, strict=False):
        yield name, of, {"color": colour, "marker": marker}
