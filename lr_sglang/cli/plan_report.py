"""What ``lr-sglang plan`` finds out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

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
