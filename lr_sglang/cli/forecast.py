"""The figures of ``lr-sglang plan``, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from lr_sglang.cli.formats import grid
from lr_sglang.config import Schedule
from lr_sglang.theory import judged, paper
from lr_sglang.theory.measured import Measured
from lr_sglang.theory.planner import Case, Choice, best_depth

SCHEDULES: tuple[Schedule, ...] = ("sync", "async")
BETTER_FIRST: tuple[Schedule, ...] = ("async", "sync")  # where both are equal
# A smaller depth wastes fewer branches: it is suggested if it costs no more than this share of the
# speed-up.
SPARE = 0.02


class Forecast:
    """All figures of a plan."""

    def __init__(
        self,
        case: Case,
        max_depth: int,
        measured: Measured | None,
        layer_speed: float = 1.0,
    ) -> None:
        self.case, self.layer_speed = case, layer_speed
        self.measured = measured
        self.rows = [_row(case, depth) for depth in range(1, max_depth + 1)]
        self.bound = paper.bound(case.accepted)
        self.useful = judged.deepest_useful(case.c1, case.judge)
        self.best = {s: best_depth(case, s, max_depth) for s in SCHEDULES}
        self.suggested = {s: best_depth(case, s, max_depth, spare=SPARE) for s in SCHEDULES}
        self.alpha_of_a_step = case.accepted
        self.expected_of_the_run = (
            case.speedup(measured.schedule, measured.depth) if measured else None
        )
        self.run = self._arguments()

    @property
    def chosen(self) -> Choice:
        """The best depth."""
        return max((self.suggested[s] for s in BETTER_FIRST), key=lambda one: one.speedup)

    def _arguments(self) -> str:
        """The plan, for ``lr-sglang run``."""
        chosen, width = self.chosen, self.case.width
        layer = "sd" if self.layer_speed > 1 else ""
        ahead = "lookahead" if chosen.depth else ""
        mode = "+".join(filter(None, (ahead, layer))) or "autoregressive"
        more = f" --schedule {chosen.schedule} --depth {chosen.depth}" if ahead else ""
        return f"--mode {mode}{more}" + (
            f" -o lookahead.width={width}" if ahead and width > 1 else ""
        )


def _row(case: Case, depth: int) -> dict[str, Any]:
    """The figures of a depth; ``branches`` are parallel target steps, ``formula`` is the speed-up
    S1 or S2.
    """
    return {
        "depth": depth,
        "k1": {s: paper.k1_of(s, depth) for s in SCHEDULES},
        "branches": {s: case.branches(s, depth) for s in SCHEDULES},
        "speedup": {s: case.speedup(s, depth) for s in SCHEDULES},
        "formula": "S1" if paper.draft_limited(case.c1 / (1 + case.judge), depth) else "S2",
    }


def show(found: Forecast) -> None:
    """Prints a plan for people."""
    out = Console(highlight=False)
    for line in _lines(found):
        out.print(
            Text(line) if isinstance(line, str) else line, soft_wrap=isinstance(line, str | Text)
        )


def _lines(found: Forecast) -> Iterator[str | Text | Padding]:
    yield from _head(found)
    yield Padding(_depths(found), (1, 0))
    yield from _limits(found)
    yield ""
    yield Text("plan: ", style="bold") + Text(f"lr-sglang run {found.run}", style="bold green")
    yield _why(found)


def _times(value: float) -> str:
    return f"{value:.2f}x"


def _head(found: Forecast) -> Iterator[str]:
    case, measured = found.case, found.measured
    step = f"a target step of {measured.step_seconds:.3g} s" if measured else "a target step"
    parts = [f"alpha {case.alpha:.2f}", f"c1 {case.c1:.2f}", f"judge {case.judge:.2f} of {step}"]
    if case.slowdown != 1:
        parts.append(f"slow-down {case.slowdown:.2f}")
    if case.steps:
        parts.append(f"{case.steps} steps an answer")
    if case.width > 1:
        parts.append(
            f"width {case.width}: alpha {case.accepted:.2f} if the versions are independent, "
            "less in truth"
        )
    yield ", ".join(parts)
    if measured is not None:
        yield (
            f"measured where not given: {measured.samples} samples, {measured.judged} judged steps"
        )


def _depths(found: Forecast) -> Any:
    best, rows = found.best, []
    deepest = max(found.useful, *(choice.depth + 1 for choice in best.values()))
    for row in found.rows:
        cells: list[object] = [row["depth"]]
        for s in SCHEDULES:
            style = "bold green" if best[s].depth == row["depth"] else ""
            cells += [Text(_times(row["speedup"][s]), style=style), row["k1"][s]]
        if row["depth"] <= deepest:  # below it async gains no more, and sync loses
            rows.append([*cells, row["branches"]["async"], row["formula"]])
    return grid(("depth", "sync", "k1", "async", "k1", "steps at once", "formula"), rows, apart=3)


def _limits(found: Forecast) -> Iterator[str]:
    for schedule, best in found.best.items():
        what = (
            f"depth {best.depth}, {best.speedup:.2f}x" if best.depth else "no lookahead: none gains"
        )
        yield f"best {schedule}: {what}"
    ceiling = "any" if found.bound == float("inf") else _times(found.bound)
    yield f"bound 1/(1 - alpha): {ceiling}; the paper's, for a draft and a judge that cost nothing"
    width = "the target's width is the limit"
    if found.useful == float("inf"):
        yield f"async: {width} at every depth (S2)"
    else:
        yield (
            f"async: S2 below depth {int(found.useful)} ({width}), S1 from there on (the draft is)"
        )
    if (measured := found.measured) is not None:
        said = f"no speed-up measured, for it has no {measured.base} sample"
        if measured.speedup is not None:
            said = f"{measured.speedup:.2f}x measured"
        of = f"that run ({measured.mode}, {measured.schedule}, depth {measured.depth})"
        yield f"{of}: {said}; {found.expected_of_the_run:.2f}x expected"


def _why(found: Forecast) -> str:
    chosen = found.chosen
    said = _times(chosen.speedup)
    if found.layer_speed > 1:
        both = _times(chosen.speedup * found.layer_speed)
        said += f" over the token layer alone, {both} over plain decoding"
    best = found.best[chosen.schedule]
    more = f"; depth {best.depth} would have {best.speedup:.2f}x, and waste more branches"
    return said + (more if chosen.depth < best.depth else "")
