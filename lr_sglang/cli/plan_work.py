"""What ``lr-sglang plan`` finds out, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lr_sglang import theory
from lr_sglang.config import Schedule
from lr_sglang.theory import Case, Choice, Measured, Split, Theorem, Tokens

SCHEDULES: tuple[Schedule, ...] = ("sync", "async")
# A smaller depth wastes fewer branches: it is suggested if it costs no more than this share of the speed-up.
SPARE = 0.02
FIGURES = (
    *("case", "tokens", "budget", "measured", "step_seconds", "rows", "bound", "useful", "best", "suggested"),
    *("splits", "tokens_alone", "theorems"),
)


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
    """All that the command says. ``step_seconds`` is the time of a target step, where it is known."""

    case: Case
    tokens: Tokens | None
    budget: int | None
    max_depth: int
    measured: Measured | None
    step_seconds: float | None

    @cached_property
    def rows(self) -> list[Row]:
        """Each depth from 1."""
        case = self.case
        return [
            Row(
                depth,
                {s: theory.k1_of(s, depth) for s in SCHEDULES},
                {s: case.branches(s, depth) for s in SCHEDULES},
                {s: case.speedup(s, depth) for s in SCHEDULES},
                "S1" if theory.draft_limited(case.c1 / (1 + case.judge), depth) else "S2",
            )
            for depth in range(1, self.max_depth + 1)
        ]

    @property
    def bound(self) -> float:
        """1 / (1 - alpha); no depth and no draft gains more."""
        return theory.bound(self.case.accepted)

    @property
    def useful(self) -> float:
        """The depth from which on the async schedule gains no more."""
        return theory.deepest_useful(self.case.c1, self.case.judge)

    @cached_property
    def best(self) -> dict[Schedule, Choice]:
        """The depth with the greatest speed-up."""
        return {s: theory.best_depth(self.case, s, self.max_depth, self.budget) for s in SCHEDULES}

    @cached_property
    def suggested(self) -> dict[Schedule, Choice]:
        """The smallest depth that comes close to it."""
        return {s: theory.best_depth(self.case, s, self.max_depth, self.budget, SPARE) for s in SCHEDULES}

    @cached_property
    def splits(self) -> dict[Schedule, Split]:
        """Of the budget, if there is a token layer."""
        if self.tokens is None or self.budget is None:
            return {}
        return {s: theory.best_split(self.case, self.tokens, s, self.budget, self.max_depth) for s in SCHEDULES}

    @cached_property
    def tokens_alone(self) -> float | None:
        """The best speed-up of the token layer without lookahead."""
        if self.tokens is None or self.budget is None:
            return None
        return max(theory.combined(self.case, self.tokens, "sync", 0, k2) for k2 in range(1, self.budget + 1))

    @cached_property
    def theorems(self) -> dict[str, Theorem]:
        """What the paper says of the split, by the theorem's number."""
        if self.tokens is None or self.budget is None:
            return {}
        numbers = (self.case.accepted, self.case.c1, self.tokens.alpha2, self.tokens.c2, self.budget)
        return {"3": theory.theorem3(*numbers), "4": theory.theorem4(*numbers)}

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
        """Every figure, by its name."""
        more = {"expected_of_the_run": self.expected, "run": self.arguments}
        return {name: getattr(self, name) for name in FIGURES} | {"alpha_of_a_step": self.case.accepted} | more


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
