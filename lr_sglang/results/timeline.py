"""How one answer was made: every branch of the three roles over time, and the critical path under
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lr_sglang.modes import MODES
from lr_sglang.results import accounting
from lr_sglang.results.plots import GREEN, GREY, ORANGE, PART_LOOKS, RED, SKY, new_figure
from lr_sglang.results.record import Record
from lr_sglang.results.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colour and hatch of a branch by its outcome.
OUTCOMES = {
    **{"accepted": (GREEN, ""), "corrected": (ORANGE, ""), "bonus": (SKY, "")},
    **{"rejected": (RED, "//"), "cancelled": ("#d0d0d0", "")},
}
ROLES = ("draft", "target", "judge")
_MOST = 40  # lanes; a picture of a wider tree cannot be read


def typical(report: Report) -> Record | None:
    """A typical answer: of about median time, and with an alpha near that of all answers.

    Answers of the lossless mode, which accepts few drafts, and of more than 16 steps, whose
    branches are hard to read, are left out unless there are no others.
    """
    ended = [
        record
        for group in report.collection.groups
        if MODES[group.mode].ahead
        for record in group.ended
    ]
    found = [record for record in ended if record["branches"] and record["steps"]]
    found = [record for record in found if not MODES[record["mode"]].lossless] or found
    short = [record for record in found if len(record["steps"]) <= 16] or found
    short.sort(key=lambda record: float(record["seconds"]))
    middle = short[len(short) // 4 : len(short) - len(short) // 4]
    alpha = sum(record["accepted"] for record in short) / max(
        1, sum(record["judged"] for record in short)
    )
    return min(middle, key=lambda record: abs((record["alpha"] or 0.0) - alpha), default=None)


def lanes(record: Record, role: str) -> list[list[dict[str, Any]]]:
    """A role's branches in the fewest lanes in which they do not overlap."""
    end = float(record.get("drained") or record["seconds"])
    rows: list[list[dict[str, Any]]] = []
    for branch in sorted(
        (b for b in record["branches"] if b["role"] == role), key=lambda b: float(b["started"])
    ):
        shown = {**branch, "ended": end if branch["ended"] is None else branch["ended"]}
        free = next((row for row in rows if row[-1]["ended"] <= shown["started"] + 1e-6), None)
        if free is None:
            rows.append(free := [])
        free.append(shown)
    return rows[:_MOST]


def timeline(report: Report) -> Figure | None:
    """The timeline of a typical answer."""
    record = typical(report)
    return picture(record) if record is not None else None


def picture(record: Record) -> Figure:
    """Lanes by role, steps by number, kept steps as lines across, the critical path at
    the bottom.
    """
    rows = [(role, lane) for role in ROLES for lane in lanes(record, role)]
    figure, axes = new_figure(10, max(3.4, 1.9 + 0.3 * (len(rows) + 2)))
    whole, bottom = max(float(record["seconds"]), 1e-9), len(rows) + 0.5
    outcomes: set[str] = set()
    for at, (_, lane) in enumerate(rows):
        for branch in lane:
            name = str(branch["outcome"] or "cancelled")
            outcomes.add(name)
            colour, hatch = OUTCOMES.get(name, (GREY, ""))
            start, length = branch["started"], max(branch["ended"] - branch["started"], whole / 400)
            axes.barh(
                at,
                length,
                0.8,
                left=start,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0.8,
            )
            if length > whole / 45:
                axes.text(
                    start + length / 2,
                    at,
                    str(branch["position"] + 1),
                    ha="center",
                    va="center",
                    fontsize=9,
                )
    path = accounting.critical_path(record)
    for piece in path:
        style: Any = {**PART_LOOKS[piece.part], "edgecolor": "white", "linewidth": 0}
        axes.barh(bottom, piece.end - piece.start, 0.8, left=piece.start, **style)
    for step in record["steps"]:
        axes.axvline(
            step["seconds"], color="#555555", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0
        )
    middles = {role: [at for at, (one, _) in enumerate(rows) if one == role] for role in ROLES}
    ticks = {role: sum(of) / len(of) for role, of in middles.items() if of}
    axes.set_yticks([*ticks.values(), bottom], [*ticks, "critical\npath"])
    axes.tick_params(axis="y", length=0)
    for role in ticks:
        axes.axhline(max(middles[role]) + 0.5, color="#999999", linewidth=0.8)
    axes.set_ylim(bottom + 0.7, -0.7)
    axes.set_xlim(
        0, max(whole, *(branch["ended"] for _, lane in rows for branch in lane), whole) * 1.005
    )
    axes.grid(visible=False)
    axes.set_xlabel(
        "seconds since the question; dashed: a step was kept; numbers: steps of the answer"
    )
    axes.set_title(
        f"{record['question_id']}, {record['mode']}: {len(record['steps'])} steps in {whole:.2f} s"
    )
    shown = {name: style for name, style in OUTCOMES.items() if name in outcomes}
    _legend(figure, "branches", shown, loc="outside right upper", alignment="left")
    used = {piece.part for piece in path}
    parts = {
        accounting.MEANING[p]: (of["color"], of["hatch"])
        for p, of in PART_LOOKS.items()
        if p in used
    }
    _legend(figure, "critical path", parts, loc="outside lower center", ncols=3)
    return figure


def _legend(figure: Figure, title: str, looks: dict[str, tuple[str, str]], **style: Any) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=c, hatch=h, edgecolor="white", label=name) for name, (c, h) in looks.items()
    ]
    figure.legend(handles=handles, title=title, fontsize=11, **style).get_title().set_fontweight(
        "bold"
    )
