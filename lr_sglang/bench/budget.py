"""The gain of parallel work: speed-up over acceptance, and over the tokens that the target spent,
with plots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr_sglang.algorithm import policy
from lr_sglang.config import Lookahead, TokenLayer
from lr_sglang.results import plots
from lr_sglang.results.expected import Expected
from lr_sglang.results.groups import Group
from lr_sglang.results.measures import Measures
from lr_sglang.results.report import Report
from lr_sglang.results.statistics import Estimate
from lr_sglang.results.store import write_whole, writing
from lr_sglang.results.tables import Table, times
from lr_sglang.runtimes.launching import token_layer
from lr_sglang.theory.measured import without

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (plots.BLUE, plots.ORANGE, plots.GREEN, plots.PURPLE, plots.SKY, plots.RED)


@dataclass(frozen=True)
class Spent:
    """The speed-up and the cost of one group with lookahead.

    Attributes:
        share: share of steps that the oracle accepts; None for another verifier.
        budget: M, the maximum number of target tokens in parallel: steps of all versions x tokens
            of a verification.
        spent: tokens that the target wrote or verified, per token of an answer.
        speedup: over plain decoding.
        expected: by the formulas, which are of lookahead alone; None where the speed-up is that of
            both layers.
    """

    name: str
    mode: str
    share: float | None
    depth: int
    concurrency: int
    budget: int
    spent: float
    speedup: Estimate
    expected: Expected | None


def spent(report: Report) -> list[Spent]:
    """Speed-up and cost of each group with lookahead and a baseline."""
    found = []
    for m in report.measures:
        look = m.group.records[0]["config"].get("lookahead")
        if look and m.speed is not None:
            found.append(_of(m, look, m.speed.tokens))
    return found


def _of(m: Measures, look: dict[str, Any], speedup: Estimate) -> Spent:
    ended = m.group.ended
    written = sum(
        _cost(branch)
        for record in ended
        for branch in record["branches"]
        if branch["role"] == "target"
    )
    used = sum(record["tokens"]["used"] for record in ended)
    kind, _, share = str(look["verifier"]).partition(":")
    return Spent(
        m.group.name,
        m.group.mode,
        float(share or 0.5) if kind in ("oracle", "random") else None,
        look["depth"],
        m.group.concurrency,
        _steps(look) * (_tokens(m.group) + 1),
        written / used if used else 0.0,
        speedup,
        m.expected if without(ended) == "autoregressive" else None,
    )


def _steps(look: dict[str, Any]) -> int:
    """k1: the maximum number of concurrent target steps, of all versions."""
    names: tuple[str, ...] = ("schedule", "depth", "width", "policy")
    known = {name: look[name] for name in names if name in look}
    return policy.in_flight(Lookahead.from_dict(known), "target")


def _tokens(group: Group) -> int:
    """Tokens that the target's token layer drafts for a verification; 0 without one."""
    target = (group.records[0]["config"].get("runtimes") or {}).get("target") or {}
    if "token_layer" in target:
        layer = TokenLayer.from_dict(target["token_layer"])
        algorithm = token_layer.BUILT_IN.get(layer.algorithm)
        width = algorithm.flags(layer).get("speculative-num-draft-tokens") if algorithm else None
        if width or layer.tokens or not layer.on:
            return width - 1 if width else layer.tokens or 0
    # The server was attached, or its draft model sets the number: its counts give the mean.
    counts = [record["tokens"]["target"].get("sd") or {} for record in group.records]
    verified, drafted = (
        sum(count.get(name, 0) for count in counts) for name in ("verified", "drafted")
    )
    return round(drafted / verified) if verified else 0


def _cost(branch: dict[str, Any]) -> int:
    """Tokens of one request: those generated, and the token layer's rejected drafts."""
    _, drafted, accepted = branch.get("sd") or (0, 0, 0)
    return int(branch["generated"]) + drafted - accepted


def table(report: Report) -> Table | None:
    """A table of speed-up and cost, by budget."""
    rows = [
        [
            one.name,
            str(one.budget),
            f"{one.spent:.2f}",
            times(one.speedup),
            times(one.expected.paper if one.expected else None),
            times(one.expected.slowdown if one.expected else None),
        ]
        for one in sorted(
            spent(report), key=lambda one: (one.share or 0, one.concurrency, one.budget)
        )
    ]
    names = ["mode", "M", "spent", "speed-up, tokens/s", "paper", "+ verdicts, ends, slow-down"]
    note = (
        "M: the most tokens of the target in work at once (steps x tokens of a verification); "
        "spent: tokens that the"
        " target wrote or verified for each token of an answer; the last two are what the "
        "formulas expect"
    )
    return Table("Parallel budget", names, rows, note) if rows else None


def draw(report: Report, folder: Path) -> list[Path]:
    """Draws both plots, and writes their data to budget.json; returns the files.

    Raises:
        SetupError: matplotlib is not installed.
        RecordError: the folder cannot be written.
    """
    points, path = spent(report), folder / "budget.json"
    made = plots.draw_each({"alpha": alpha, "budget": budget}, points, folder, report.warning)
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, {"warning": report.warning, "points": [asdict(one) for one in points]})
    return [*made, path]


def alpha(points: list[Spent]) -> Figure | None:
    """Plots the speed-up over the acceptance rate, one line per depth, and the formulas'
    expectation.
    """
    known = [one for one in points if one.share is not None]
    if len({one.share for one in known}) < 2:
        return None
    figure, axes = _axes(
        "Speed-up against acceptance", "share of steps that are accepted", known, formulas=True
    )
    for number, (label, of) in enumerate(_lines(known, lambda one: f"depth {one.depth}").items()):
        of.sort(key=lambda one: one.share or 0.0)
        places, colour = [(one.share or 0.0, one.speedup) for one in of], COLOURS[number]
        plots.whiskers(axes, places, color=colour, marker=plots.MARKERS[number], label=label)
        expected = f"{label}, the paper's formula"
        axes.plot([x for x, _ in places], _paper(of), color=colour, linestyle=":", label=expected)
    plots.legend_below(figure, axes)
    return figure


def budget(points: list[Spent]) -> Figure | None:
    """Plots the speed-up over the target's spent tokens, one line per acceptance rate; the numbers
    are budgets M.
    """
    if len({one.budget for one in points}) < 2:
        return None
    title = "What the parallel budget M buys (the numbers beside the points)"
    figure, axes = _axes(title, "tokens of the target spent for each one delivered", points)
    lines = _lines(points, lambda one: "measured" if one.share is None else f"alpha {one.share:g}")
    for number, (label, of) in enumerate(lines.items()):
        of.sort(key=lambda one: one.budget)
        places = [(one.spent, one.speedup) for one in of]
        plots.whiskers(
            axes, places, color=COLOURS[number], marker=plots.MARKERS[number], label=label
        )
        for one in of:
            place, near = (one.spent, one.speedup.value), (5, 5)
            axes.annotate(str(one.budget), place, near, textcoords="offset points", fontsize=10)
    plots.legend_below(figure, axes)
    return figure


def _axes(title: str, x: str, points: list[Spent], formulas: bool = False) -> tuple[Figure, Axes]:
    """Axes for all values; they may cut the intervals of very few questions."""
    figure, axes = plots.new_figure(8)
    values = [one.speedup.value for one in points] + (_paper(points) if formulas else [])
    axes.axhline(1, color="#333333", linewidth=1)
    axes.set_ylim(0, 1.35 * max(1.0, *(value for value in values if value == value)))
    axes.set(xlabel=x, ylabel="speed-up, tokens/s\nover plain decoding", title=title)
    return figure, axes


def _lines(points: list[Spent], label: Callable[[Spent], str]) -> dict[str, list[Spent]]:
    """Points by line; of too many lines, the first of those with the most points."""
    several, modes = (
        len({one.concurrency for one in points}) > 1,
        len({one.mode for one in points}) > 1,
    )
    found: dict[str, list[Spent]] = defaultdict(list)
    for one in points:
        name = f"{one.mode}, {label(one)}" if modes else label(one)
        found[name + (f", {one.concurrency} at once" if several else "")].append(one)
    kept = sorted(found, key=lambda name: -len(found[name]))[: len(COLOURS)]
    return {name: of for name, of in found.items() if name in kept}


def _paper(of: list[Spent]) -> list[float]:
    return [one.expected.paper if one.expected else float("nan") for one in of]
