"""Common style and files (PNG and SVG) of a report's plots, drawn by matplotlib (the extra
``plots``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lr_sglang.errors import SetupError
from lr_sglang.results.accounting import PARTS
from lr_sglang.results.statistics import Estimate
from lr_sglang.results.store import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = ("png", "svg")
# Okabe and Ito's colours, which people of all kinds of colour vision tell apart.
BLUE, SKY, GREEN, YELLOW, ORANGE, RED, PURPLE, GREY = (
    *("#0072B2", "#56B4E9", "#009E73", "#F0E442", "#E69F00", "#D55E00", "#CC79A7", "#767676"),
)
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
MODES = {
    "autoregressive": (GREY, "o", ""),
    "sd": (ORANGE, "s", "//"),
    "lookahead": (BLUE, "D", ""),
    "lookahead+sd": (GREEN, "^", "\\\\"),
    "lossless": (PURPLE, "v", ".."),
}
# Colour and hatch of the parts of the critical path.
_LOOKS = (
    (BLUE, ""),
    (SKY, ".."),
    (GREEN, "//"),
    (ORANGE, "\\\\"),
    (YELLOW, ""),
    (PURPLE, "xx"),
    (GREY, ""),
)
PART_LOOKS = {
    part: {"color": colour, "hatch": hatch}
    for part, (colour, hatch) in zip(PARTS, _LOOKS, strict=True)
}
# Text stays text, and the file does not depend on the time: the same numbers make the same file.
FIXED: Any = {"svg.fonttype": "none", "svg.hashsalt": "lr-sglang"}
STYLE: Any = {
    **FIXED,
    # A dollar sign in a model's name or an answer begins no formula.
    "text.parse_math": False,
    **{
        "font.size": 12,
        "axes.titlesize": 13,
        "lines.linewidth": 1.8,
        "lines.markersize": 7,
        "hatch.linewidth": 0.6,
    },
    **{
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "axes.axisbelow": True,
    },
    **{"axes.grid": True, "axes.grid.axis": "y", "grid.color": "#d8d8d8", "grid.linewidth": 0.8},
}

Subject = TypeVar("Subject")


def look(mode: str) -> tuple[str, str, str]:
    """Colour, marker and hatch of a mode, the same in every plot."""
    return MODES.get(mode, (RED, "X", "xx"))


def draw_each(
    makers: Mapping[str, Callable[[Subject], Figure | None]],
    subject: Subject,
    folder: Path,
    warning: str,
) -> list[Path]:
    """Draws the picture of each maker that has figures; returns the files.

    A warning about the figures is drawn into the picture, because that may be passed on alone.

    Raises:
        SetupError: matplotlib is not installed.
        RecordError: the folder cannot be written.
    """
    words, made = warning[:1].upper() + warning[1:], []
    with matplotlib().rc_context(STYLE):
        for name, maker in makers.items():
            figure = maker(subject)
            if figure is None:
                continue
            if title := words and figure.get_suptitle():
                figure.suptitle(f"{title}\n{words}", fontsize=12)
            elif words:
                figure.suptitle(words, fontsize=12, color="#a03000")
            for path in [folder / f"{name}.{suffix}" for suffix in SUFFIXES]:
                with writing(path, "give another --plots"):
                    folder.mkdir(parents=True, exist_ok=True)
                    save(figure, path, 150)
                figure.set_layout_engine(
                    "none"
                )  # all files of a picture get the layout of the first
                made.append(path)
    return made


def matplotlib() -> Any:
    """The module.

    Raises:
        SetupError: it is not installed.
    """
    try:
        import matplotlib as module
    except ImportError as error:
        raise SetupError("plots need matplotlib", hint="pip install 'lr-sglang[plots]'") from error
    return module


def save(figure: Figure, path: Path, dpi: int) -> None:
    """Writes a picture, without its date."""
    figure.savefig(
        path, dpi=dpi, metadata={"Date" if path.suffix.lower() == ".svg" else "Software": None}
    )


def new_figure(width: float, height: float = 4.5) -> tuple[Figure, Axes]:
    """A figure of one panel; sizes are inches."""
    figure, grid = new_grid(width, height, 1, 1)
    return figure, grid[0][0]


def new_grid(width: float, height: float, rows: int, columns: int) -> tuple[Figure, Any]:
    """A figure of panels that share their upright axis, and its panels by row and column."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, sharey=True, squeeze=False)


def whiskers(axes: Axes, points: Sequence[tuple[float, Estimate]], **style: Any) -> Any:
    """Draws estimates with their intervals, if they have one."""
    down = [0.0 if e.low is None else e.value - e.low for _, e in points]
    up = [0.0 if e.high is None else e.high - e.value for _, e in points]
    places, values = [place for place, _ in points], [e.value for _, e in points]
    return axes.errorbar(places, values, [down, up], **{"capsize": 3, **style})


def legend_below(figure: Figure, axes: Axes) -> None:
    """Draws the legend under the axes and makes the figure taller; one series gets no legend."""
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) < 2:
        return
    room = int(figure.get_figwidth() * 13)
    labels = [label if len(label) < room - 8 else label[: room - 9] + "…" for label in labels]
    columns = min(len(handles), 4, max(1, room // (max(map(len, labels)) + 7)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=11)
    figure.set_figheight(figure.get_figheight() + 0.25 * (math.ceil(len(handles) / columns) - 1))
