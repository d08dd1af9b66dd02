"""Plots of a report as PNG and SVG, drawn by matplotlib (the extra ``plots``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lr_sglang.errors import SetupError
from lr_sglang.results.report import Report
from lr_sglang.results.store import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = ("png", "svg")
# Okabe and Ito's colours, which people of all kinds of colour vision tell apart.
BLUE, SKY, GREEN, YELLOW, ORANGE, RED, PURPLE, GREY = (
    *("#0072B2", "#56B4E9", "#009E73", "#F0E442", "#E69F00", "#D55E00", "#CC79A7", "#767676"),
)
MODES = {
    "autoregressive": (GREY, "o", ""),
    "sd": (ORANGE, "s", "//"),
    "lookahead": (BLUE, "D", ""),
    "lookahead+sd": (GREEN, "^", "\\\\"),
    "lossless": (PURPLE, "v", ".."),
}
STYLE: Any = {
    # Text stays text, and nothing in the file depends on when it was drawn: the same numbers make the same file.
    "svg.fonttype": "none",
    "svg.hashsalt": "lr-sglang",
    # A model's name or an answer may hold a dollar sign, which is no formula.
    "text.parse_math": False,
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#d8d8d8",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 7,
    "hatch.linewidth": 0.6,
}

Subject = TypeVar("Subject")


def look(mode: str) -> tuple[str, str, str]:
    """Colour, marker and hatch of a mode, the same in every plot."""
    return MODES.get(mode, (RED, "X", "xx"))


def draw(report: Report, folder: Path) -> list[Path]:
    """Draws every plot that there are figures for; returns the files.

    Raises:
        SetupError: matplotlib is not there.
        RecordError: the folder cannot be written.
    """
    from lr_sglang.results import charts, sweeps, timeline

    makers = {
        "speedup": charts.speedup,
        "depth": sweeps.depth,
        "sd_tokens": sweeps.sd_tokens,
        "concurrency": sweeps.concurrency,
        "acceptance": charts.acceptance,
        "time": charts.time,
        "timeline": timeline.timeline,
    }
    return draw_each(makers, report, folder, report.warning)


def draw_each(
    makers: Mapping[str, Callable[[Subject], Figure | None]], subject: Subject, folder: Path, warning: str
) -> list[Path]:
    """Draws a picture by each maker that has figures for one, with what must be said of it; returns the files.

    Raises:
        SetupError, RecordError: as ``draw``.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise SetupError("plots need matplotlib", hint="pip install 'lr-sglang[plots]'") from error
    made = []
    with mpl.rc_context(STYLE):
        for name, maker in makers.items():
            figure = maker(subject)
            if figure is not None:
                _mark(figure, warning)
                made += [_save(figure, folder / f"{name}.{suffix}") for suffix in SUFFIXES]
    return made


def _mark(figure: Figure, warning: str) -> None:
    """What must be said of the figures stands in the picture itself, which travels alone."""
    if not warning:
        return
    words = warning[0].upper() + warning[1:]
    title = figure.get_suptitle()
    if title:
        figure.suptitle(f"{title}\n{words}", fontsize=12)
    else:
        figure.suptitle(words, fontsize=12, color="#a03000")


def _save(figure: Figure, path: Path) -> Path:
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with writing(path, "give another --plots"):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata=metadata)
    return path
