"""What ``lr-sglang plan`` finds out, and how it is shown."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lr_sglang.config import Schedule
from lr_sglang.theory import (
    Case,
    Choice,
    Measured,
    Split,
    Theorem,
    Tokens,
    best_depth,
    best_split,
    bound,
    combined,
    deepest_useful,
    draft_limited,
    k1_of,
    theorem3,
    theorem4,
)

SCHEDULES: tuple[Schedule, ...] = ("sync", "async")
# A smaller depth wastes fewer branches: it is suggested if it costs no more than this share of the speed-up.
SPARE = 0.02


@dataclass(frozen=True)
class Row:
    """One depth, in both schedules. ``branches`` are target steps at once, ``formula`` is S1 or S2."""

    depth: int
    k1: dict[Schedule, int]
    branches: dict[Schedule, int]
    speedup: dict[Schedule, float]
    formula: str


@dataclass(frozen=True)
class Forecast:
    """All that the command says.

    Attributes:
        bound: 1 / (1 - alpha); no depth and no draft gains more.
        useful: the depth from which on the async schedule gains no more.
        best, suggested: the depth with the greatest speed-up, and the smallest that comes close to it.
        splits: of the budget, if there is a token layer; ``tokens_alone`` is the best speed-up without lookahead.
    """

    case: Case
    tokens: Tokens | None
    budget: int | None
    measured: Measured | None
    step_seconds: float | None
    rows: list[Row]
    bound: float
    useful: float
    best: dict[Schedule, Choice]
    suggested: dict[Schedule, Choice]
    splits: dict[Schedule, Split]
    tokens_alone: float | None
    theorems: dict[str, Theorem]

    @classmethod
    def of(
        cls,
        case: Case,
        tokens: Tokens | None,
        budget: int | None,
        max_depth: int,
        measured: Measured | None,
        step_seconds: float | None,
    ) -> Forecast:
        """Works it out."""
        splits: dict[Schedule, Split] = {}
        theorems: dict[str, Theorem] = {}
        alone = None
        if tokens is not None and budget is not None:
            splits = {s: best_split(case, tokens, s, budget, max_depth) for s in SCHEDULES}
            numbers = (case.accepted, case.c1, tokens.alpha2, tokens.c2, budget)
            theorems = {"3": theorem3(*numbers), "4": theorem4(*numbers)}
            alone = max(combined(case, tokens, "sync", 0, k2) for k2 in range(1, budget + 1))
        return cls(
            case=case,
            tokens=tokens,
            budget=budget,
            measured=measured,
            step_seconds=step_seconds or (measured.step_seconds if measured is not None else None),
            rows=[_row(case, depth) for depth in range(1, max_depth + 1)],
            bound=bound(case.accepted),
            useful=deepest_useful(case.c1, case.judge),
            best={s: best_depth(case, s, max_depth, budget) for s in SCHEDULES},
            suggested={s: best_depth(case, s, max_depth, budget, SPARE) for s in SCHEDULES},
            splits=splits,
            tokens_alone=alone,
            theorems=theorems,
        )

    @property
    def expected(self) -> float | None:
        """Of the run that was measured, by the numbers in use."""
        if self.measured is None:
            return None
        return self.case.speedup("sync" if self.measured.schedule == "sync" else "async", self.measured.depth)

    @property
    def choice(self) -> Choice | Split:
        """The better schedule, with its depth; async if they are equal."""
        if self.splits:
            return max((self.splits[s] for s in ("async", "sync")), key=lambda split: split.speedup)
        return max((self.suggested[s] for s in ("async", "sync")), key=lambda choice: choice.speedup)

    @property
    def arguments(self) -> str:
        """The plan, for ``lr-sglang run``."""
        chosen = self.choice
        layer = chosen.k2 > 1 if isinstance(chosen, Split) else False
        ahead = chosen.depth > 0
        mode = {(True, True): "lookahead+sd", (True, False): "lookahead", (False, True): "sd"}.get((ahead, layer))
        parts = [f"--mode {mode or 'autoregressive'}"]
        if ahead:
            parts.append(f"--schedule {chosen.schedule} --depth {chosen.depth}")
            if self.case.width > 1:
                parts.append(f"--width {self.case.width}")
        if isinstance(chosen, Split) and layer:
            parts.append(f"--sd-tokens {chosen.k2 - 1}")
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        more = {"expected_of_the_run": self.expected, "run": self.arguments}
        return {**dataclasses.asdict(self), "alpha_of_a_step": self.case.accepted, **more}


def _row(case: Case, depth: int) -> Row:
    return Row(
        depth,
        {s: k1_of(s, depth) for s in SCHEDULES},
        {s: case.branches(s, depth) for s in SCHEDULES},
        {s: case.speedup(s, depth) for s in SCHEDULES},
        "S1" if draft_limited(case.c1 / (1 + case.judge), depth) else "S2",
    )


def show(forecast: Forecast, picture: Path | None) -> None:
    """Prints it for people; where a picture went is said on standard error."""
    out = Console(highlight=False)
    for line in _head(forecast):
        out.print(Text(line), soft_wrap=True)
    out.print(Padding(_depths(forecast), (1, 0)))
    for line in (*_limits(forecast), *_measured(forecast)):
        out.print(Text(line), soft_wrap=True)
    if forecast.splits:
        out.print(Padding(_split_table(forecast), (1, 0)))
        for line in _theorems(forecast):
            out.print(Text(line), soft_wrap=True)
    out.print()
    command = Text(f"lr-sglang run {forecast.arguments}", style="bold green")
    out.print(Text("plan: ", style="bold") + command, soft_wrap=True)
    for line in _why(forecast):
        out.print(Text(line), soft_wrap=True)
    if picture is not None:
        Console(stderr=True, highlight=False).print(Text(f"picture: {picture}", style="dim"), soft_wrap=True)


def _head(forecast: Forecast) -> list[str]:
    case, measured = forecast.case, forecast.measured
    parts = [f"alpha {case.alpha:.2f}", f"c1 {case.c1:.2f}", f"judge {case.judge:.2f} of a target step"]
    if forecast.step_seconds is not None:
        parts[-1] += f" of {forecast.step_seconds:.3g} s"
    if case.slowdown != 1:
        parts.append(f"slow-down {case.slowdown:.2f}")
    if case.steps:
        parts.append(f"{case.steps} steps an answer")
    if case.width > 1:
        parts.append(f"width {case.width}: alpha {case.accepted:.2f} if the versions are independent, less in truth")
    lines = [", ".join(parts)]
    if measured is not None:
        lines.append(f"measured where not given: {measured.samples} samples, {measured.judged} judged steps")
    return lines


def _depths(forecast: Forecast) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    for name in ("depth", "sync", "k1", "async", "k1", "steps at once", "formula"):
        table.add_column(name, justify="right")
    deepest = max(forecast.useful, *(choice.depth + 1 for choice in forecast.best.values()))
    for row in forecast.rows:
        if row.depth > deepest:
            break  # async gains no more, and sync loses
        cells: list[Text] = []
        for schedule in SCHEDULES:
            best = forecast.best[schedule].depth == row.depth
            cells += [Text(f"{row.speedup[schedule]:.2f}x", style="bold green" if best else "")]
            cells += [Text(str(row.k1[schedule]))]
        table.add_row(str(row.depth), *cells, str(row.branches["async"]), row.formula)
    return table


def _limits(forecast: Forecast) -> list[str]:
    lines = []
    for schedule in SCHEDULES:
        best = forecast.best[schedule]
        what = f"depth {best.depth}, {best.speedup:.2f}x" if best.depth else "no lookahead: none gains"
        most = "" if forecast.budget is None else f" (at most {forecast.budget} target steps at once)"
        lines.append(f"best {schedule}: {what}{most}")
    ceiling = "any" if forecast.bound == float("inf") else f"{forecast.bound:.2f}x"
    lines.append(f"bound 1/(1 - alpha): {ceiling}; the paper's, for a draft and a judge that cost nothing")
    if forecast.useful == float("inf"):
        lines.append("async: the target's width is the limit at every depth (S2)")
    else:
        depth = int(forecast.useful)
        lines.append(
            f"async: S2 below depth {depth} (the target's width is the limit), S1 from there on (the draft is)"
        )
    return lines


def _measured(forecast: Forecast) -> list[str]:
    measured, expected = forecast.measured, forecast.expected
    if measured is None or expected is None:
        return []
    said = f"no speed-up measured, for it has no {measured.base} sample"
    if measured.speedup is not None:
        said = f"{measured.speedup:.2f}x measured"
    return [
        f"that run ({measured.mode}, {measured.schedule}, depth {measured.depth}): {said}; {expected:.2f}x expected"
    ]


def _split_table(forecast: Forecast) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    for name in (f"M = {forecast.budget}", "k1", "k2", "depth", "both layers", "tokens only", "steps only"):
        table.add_column(name, justify="left" if name.startswith("M") else "right")
    for schedule, split in forecast.splits.items():
        steps = forecast.best[schedule].speedup
        speeds = (split.speedup, forecast.tokens_alone or 1.0, steps)
        cells = (f"{speed:.2f}x" for speed in speeds)
        table.add_row(schedule, str(split.k1), str(split.k2), str(split.depth), *cells)
    return table


def _theorems(forecast: Forecast) -> list[str]:
    best = {"both": "both layers", "tokens": "the token layer alone", "steps": "lookahead alone"}
    lines = []
    for (number, theorem), schedule in zip(forecast.theorems.items(), SCHEDULES, strict=True):
        name = f"theorem {number} ({schedule}): "
        if theorem.best is None:
            lines.append(f"{name}does not apply: {'; '.join(theorem.unmet)}")
            continue
        held = ", ".join(f"({n}) {'holds' if holds else 'fails'}" for n, holds in theorem.inequalities.items())
        lines.append(f"{name}{best[theorem.best]}" + (f" [{held}]" if held else ""))
    if forecast.case.judge or forecast.case.steps or forecast.case.width > 1 or forecast.case.slowdown != 1:
        lines.append(
            "(the theorems are for a judge that costs nothing, one draft a step, long answers and no slow-down)"
        )
    return lines


def _why(forecast: Forecast) -> list[str]:
    chosen = forecast.choice
    if isinstance(chosen, Split):
        layer = f"{chosen.k2} tokens at once, {chosen.k2 - 1} of them drafted" if chosen.k2 > 1 else "none"
        return [f"{chosen.speedup:.2f}x; token layer: {layer}"]
    best = forecast.best[chosen.schedule]
    if chosen.depth < best.depth:
        return [f"{chosen.speedup:.2f}x; depth {best.depth} would have {best.speedup:.2f}x, and waste more branches"]
    return [f"{chosen.speedup:.2f}x"]
