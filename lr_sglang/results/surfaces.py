"""Pictures of the expected speed-up over two settings, drawn by matplotlib (the extra
``plots``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr_sglang.config import Schedule
from lr_sglang.errors import ConfigError
from lr_sglang.results.plots import FIXED, matplotlib, save
from lr_sglang.theory.planner import Case, Tokens, best_depth, best_split, splits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
SCHEDULES: tuple[Schedule, ...] = ("sync", "async")
# Columns of the surface over alpha; each has the value in its middle.
_ALPHAS = 50
_LEVELS = (0.25, 0.5, 1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16)
Surfaces = Mapping[Schedule, Sequence[Sequence[float]]]


def draw(path: Path, case: Case, tokens: Tokens | None, budget: int | None, max_depth: int) -> None:
    """Draws the surface over (k1, k2) if there are a token layer and a budget, else over (alpha,
    depth).

    Raises:
        SetupError: matplotlib is not installed.
        ConfigError: matplotlib does not know the type of file, or it cannot be written.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: a picture is {' or '.join(SUFFIXES)}")
    with matplotlib().rc_context({**FIXED, "font.size": 9}):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3.6), layout="constrained")
        if tokens is not None and budget is not None:
            _splits(figure, case, tokens, budget, max_depth)
        else:
            _depths(figure, case, max_depth)
        figure.suptitle(_title(case, tokens, budget))
        try:
            save(figure, path, 120)
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be written: {error.strerror}", hint="give another --picture"
            ) from error


def _surfaces(
    figure: Figure, surfaces: Surfaces, width: float, x: float, names: Sequence[str], **style: Any
) -> Any:
    """Draws a panel for each schedule: values by row and column; columns cover ``width`` from ``x``
    on, rows begin at 1."""
    from matplotlib.ticker import MaxNLocator

    grid: Any = figure.subplots(1, len(SCHEDULES), sharex=True, sharey=True)
    for axes, schedule in zip(grid, SCHEDULES, strict=True):
        rows = surfaces[schedule]
        style |= {"origin": "lower", "aspect": "auto", "interpolation": "none", "cmap": "viridis"}
        mesh = axes.imshow(rows, extent=(x, x + width, 0.5, len(rows) + 0.5), **style)
        axes.set(title=schedule, xlabel=names[0], ylabel=names[1])
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return grid, mesh


def _depths(figure: Figure, case: Case, max_depth: int) -> None:
    from matplotlib.colors import LogNorm

    alphas = [(column + 0.5) / _ALPHAS for column in range(_ALPHAS)]
    depths = range(1, max_depth + 1)
    of = [
        Case(alpha, case.c1, case.judge, case.slowdown, case.width, case.steps) for alpha in alphas
    ]
    surfaces = {s: [[one.speedup(s, depth) for one in of] for depth in depths] for s in SCHEDULES}
    values = [value for surface in surfaces.values() for row in surface for value in row]
    names = "alpha (share of steps accepted)", "depth"
    grid, mesh = _surfaces(figure, surfaces, 1, 0, names, norm=LogNorm(min(values), max(values)))
    levels = [level for level in _LEVELS if min(values) < level < max(values)]
    for axes, schedule in zip(grid, SCHEDULES, strict=True):
        if levels and max_depth > 1:
            lines = axes.contour(
                alphas, list(depths), surfaces[schedule], levels, colors="white", linewidths=0.8
            )
            axes.clabel(lines, fmt=lambda level: f"{level:g}x", fontsize=8)
        best = best_depth(case, schedule, max_depth)
        if best.depth:
            axes.plot(case.alpha, best.depth, "o", color="red", clip_on=False)
    figure.colorbar(
        mesh, ax=figure.axes, label="speed-up", ticks=_LEVELS, format="%gx"
    ).minorticks_off()


def _splits(figure: Figure, case: Case, tokens: Tokens, budget: int, max_depth: int) -> None:
    from matplotlib.ticker import MaxNLocator

    found = {s: list(splits(case, tokens, s, budget, max_depth)) for s in SCHEDULES}
    everything = [split for of in found.values() for split in of]
    k1s, k2s = max(split.k1 for split in everything), max(split.k2 for split in everything)
    surfaces = {schedule: [[math.nan] * k1s for _ in range(k2s)] for schedule in SCHEDULES}
    for split in everything:
        surfaces[split.schedule][split.k2 - 1][split.k1 - 1] = split.speedup
    speeds = [split.speedup for split in everything]
    names = "k1 (target steps at once)", "k2 (tokens at once)"
    grid, mesh = _surfaces(figure, surfaces, k1s, 0.5, names, vmin=min(speeds), vmax=max(speeds))
    for axes, schedule in zip(grid, SCHEDULES, strict=True):
        best = best_split(case, tokens, schedule, budget, max_depth)
        axes.plot(best.k1, best.k2, "o", color="red")
        axes.annotate(
            f"{best.speedup:.2f}x",
            (best.k1, best.k2),
            (6, 6),
            textcoords="offset points",
            color="red",
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(mesh, ax=figure.axes, label="speed-up")


def _title(case: Case, tokens: Tokens | None, budget: int | None) -> str:
    parts = [f"alpha {case.alpha:.2f}, c1 {case.c1:.2f}, judge {case.judge:.2f}"]
    parts += [f"width {case.width}"] if case.width > 1 else []
    parts += [f"{case.steps} steps"] if case.steps else []
    parts += [f"slow-down {case.slowdown:.2f}"] if case.slowdown != 1 else []
    parts += (
        [f"alpha2 {tokens.alpha2:.2f}, c2 {tokens.c2:.2f}, M {budget}"] if tokens and budget else []
    )
    return ", ".join(parts)
