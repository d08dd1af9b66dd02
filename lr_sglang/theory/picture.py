"""Pictures of the expected speed-up, drawn by matplotlib (the extra ``plots``)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr_sglang.config import Schedule
from lr_sglang.errors import ConfigError, SetupError
from lr_sglang.theory.planner import Case, Tokens, best_depth, best_split, splits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
SCHEDULES: tuple[Schedule, ...] = ("sync", "async")
_COLOURS = "viridis"
# Columns of the surface over alpha; drawn in the middle of each.
_ALPHAS = 50
_LEVELS = (0.25, 0.5, 1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16)


def draw(path: Path, case: Case, tokens: Tokens | None, budget: int | None, max_depth: int) -> None:
    """Draws the surface over (k1, k2) where there are a token layer and a budget, over (alpha, depth) otherwise.

    Raises:
        SetupError: matplotlib is not there.
        ConfigError: the file is of another kind, or cannot be written.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: a picture is {' or '.join(SUFFIXES)}")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetupError("a picture needs matplotlib", hint="pip install 'lr-sglang[plots]'") from error
    # Text stays text, and nothing in the file depends on when it was drawn: the same numbers make the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lr-sglang", "font.size": 9}):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        if tokens is not None and budget is not None:
            _splits(figure, case, tokens, budget, max_depth)
        else:
            _depths(figure, case, max_depth)
        figure.suptitle(_title(case, tokens, budget))
        kind = path.suffix.lower()[1:]
        try:
            figure.savefig(path, dpi=120, metadata={"Date": None} if kind == "svg" else {"Software": None})
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}", hint="give another --picture") from error


def _depths(figure: Figure, case: Case, max_depth: int) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator

    alphas = [(column + 0.5) / _ALPHAS for column in range(_ALPHAS)]
    depths = range(1, max_depth + 1)
    of = [Case(alpha, case.c1, case.judge, case.slowdown, case.width, case.steps) for alpha in alphas]
    surfaces = {s: [[one.speedup(s, depth) for one in of] for depth in depths] for s in SCHEDULES}
    values = [value for surface in surfaces.values() for row in surface for value in row]
    for axes, schedule in zip(_panels(figure), SCHEDULES, strict=True):
        mesh = axes.imshow(
            surfaces[schedule],
            origin="lower",
            extent=(0, 1, 0.5, max_depth + 0.5),
            aspect="auto",
            interpolation="none",
            cmap=_COLOURS,
            norm=LogNorm(min(values), max(values)),
        )
        levels = [level for level in _LEVELS if min(values) < level < max(values)]
        if levels and max_depth > 1:
            lines = axes.contour(alphas, list(depths), surfaces[schedule], levels, colors="white", linewidths=0.8)
            axes.clabel(lines, fmt=lambda level: f"{level:g}x", fontsize=8)
        best = best_depth(case, schedule, max_depth)
        if best.depth:
            axes.plot(case.alpha, best.depth, "o", color="red", clip_on=False)
        axes.set(title=schedule, xlabel="alpha (share of steps accepted)", ylabel="depth")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(mesh, ax=figure.axes, label="speed-up", ticks=_LEVELS, format="%gx")
    bar.minorticks_off()


def _splits(figure: Figure, case: Case, tokens: Tokens, budget: int, max_depth: int) -> None:
    from matplotlib.ticker import MaxNLocator

    found = {s: list(splits(case, tokens, s, budget, max_depth)) for s in SCHEDULES}
    low = min(split.speedup for of in found.values() for split in of)
    high = max(split.speedup for of in found.values() for split in of)
    k1s, k2s = (max(getattr(split, k) for of in found.values() for split in of) for k in ("k1", "k2"))
    for axes, schedule in zip(_panels(figure), SCHEDULES, strict=True):
        surface = [[math.nan] * k1s for _ in range(k2s)]
        for split in found[schedule]:
            surface[split.k2 - 1][split.k1 - 1] = split.speedup
        extent = (0.5, k1s + 0.5, 0.5, k2s + 0.5)
        mesh = axes.imshow(
            surface,
            origin="lower",
            extent=extent,
            aspect="auto",
            interpolation="none",
            cmap=_COLOURS,
            vmin=low,
            vmax=high,
        )
        best = best_split(case, tokens, schedule, budget, max_depth)
        axes.plot(best.k1, best.k2, "o", color="red")
        axes.annotate(f"{best.speedup:.2f}x", (best.k1, best.k2), (6, 6), textcoords="offset points", color="red")
        axes.set(title=schedule, xlabel="k1 (target steps at once)", ylabel="k2 (tokens at once)")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(mesh, ax=figure.axes, label="speed-up")


def _panels(figure: Figure) -> list[Axes]:
    grid: Any = figure.subplots(1, len(SCHEDULES), sharex=True, sharey=True)
    return list(grid)


def _title(case: Case, tokens: Tokens | None, budget: int | None) -> str:
    layer = f", alpha2 {tokens.alpha2:.2f}, c2 {tokens.c2:.2f}, M {budget}" if tokens and budget else ""
    more = "".join(
        (
            f", width {case.width}" if case.width > 1 else "",
            f", {case.steps} steps" if case.steps else "",
            f", slow-down {case.slowdown:.2f}" if case.slowdown != 1 else "",
        )
    )
    return f"alpha {case.alpha:.2f}, c1 {case.c1:.2f}, judge {case.judge:.2f}{more}{layer}"
