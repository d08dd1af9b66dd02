"""Extends the paper's speed-ups to slow verdicts and short answers, and finds the best depth.

``judge`` is the time of a verdict over the time of a target step, 0 or more. The derivation is in
``docs/theory.md``; it models ``programs/lookahead.py``, and tests compare it with that program on a
virtual clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lr_sglang.config import Schedule
from lr_sglang.theory.paper import check_in_range, expected_run, f_async, whole, within

# The maximum of the option ``depth``.
MAX_DEPTH = 64
# Share of the highest speed-up that may be lost for a smaller depth, which wastes fewer branches.
TOLERATED_LOSS = 0.02
# Maximum number of steps of an answer for ``answer_time``.
MAX_STEPS = 500
# Runs with a lower probability are left out of a sum.
_NEVER = 1e-12


def speedup(
    schedule: Schedule,
    alpha: float,
    c1: float,
    depth: int,
    judge: float = 0.0,
    steps: int | None = None,
) -> float:
    """Expected speed-up of the programs over the target alone, at this depth.

    sync: a cycle drafts ``depth`` steps, the target writes ``depth + 1``, and all verdicts are made
    in parallel: (1 - alpha^(depth+1)) / ((1 - alpha)(1 + depth c1 + judge)).

    async: a step leaves the window when its verdict arrives. So a target step takes 1 + judge, and
    a draft step c1/(1 + judge) of that: f_async(alpha, c1/(1 + judge), depth) / (1 + judge).

    Args:
        steps: number of steps of an answer; None for a long one, which the formulas assume. The
            last cycle of a short answer gains less: the result is then ``steps / answer_time``.
    """
    if steps is not None:
        return steps / answer_time(schedule, alpha, c1, depth, judge, steps)
    _check(alpha, c1, depth, judge)
    if schedule == "sync":
        return expected_run(alpha, depth + 1) / (1 + depth * c1 + judge)
    return f_async(alpha, c1 / (1 + judge), depth) / (1 + judge)


def answer_time(
    schedule: Schedule, alpha: float, c1: float, depth: int, judge: float, steps: int
) -> float:
    """Expected time of an answer of ``steps`` steps, in target steps; the target alone needs
    ``steps``.

    With n steps left, a cycle that ends with step x (counted from 0) takes until x's verdict, and
    leaves n - x - 1: D(n) = sum over x < n of P(cycle ends with x) (time(x) + D(n - x - 1)). No
    step is drafted beyond the end.
    """
    _check(alpha, c1, depth, judge)
    within(
        "steps",
        steps,
        1 <= steps <= MAX_STEPS,
        f"in 1..{MAX_STEPS} (left out, it means a long answer)",
    )
    times = _verdicts(c1, depth, judge, steps)
    expected = [0.0]
    for left in range(1, steps + 1):
        longest = left - 1 if schedule == "async" else min(depth, left - 1)
        cycle = min(depth, left) * c1 + 1 + judge
        total = 0.0
        reached = 1.0
        for x in range(longest + 1):
            ends = reached * (1 - alpha) if x < longest else reached
            total += ends * ((times[x] if schedule == "async" else cycle) + expected[left - x - 1])
            reached *= alpha
            if reached < _NEVER:
                break
        expected.append(total)
    return expected[steps]


def _verdicts(c1: float, depth: int, judge: float, steps: int) -> list[float]:
    """The time of the verdict on each step of an async cycle. A target step starts when the draft
    before it is there and the window includes it."""
    starts = [0.0]
    for j in range(1, steps):
        freed = starts[j - depth] + 1 + judge if j >= depth else 0.0
        starts.append(max(starts[j - 1] + c1, freed))
    return [start + 1 + judge for start in starts]


def _check(alpha: float, c1: float, depth: int = 1, judge: float = 0.0) -> None:
    check_in_range(alpha, c1)
    within("depth", depth, depth >= 1, "at least 1")
    within("judge", judge, 0 <= judge < math.inf, "0 or more")


def deepest_useful(c1: float, judge: float) -> float:
    """ceil((1 + judge)/c1): at this depth and above, the draft limits the async speed-up, which
    grows no more.
    """
    _check(0, c1, judge=judge)
    return whole((1 + judge) / c1) if c1 else math.inf


@dataclass(frozen=True)
class Case:
    """The conditions of lookahead. Times are in units of one target step among parallel branches.

    Attributes:
        alpha: the probability that one of a step's drafted versions is accepted.
        c1: time of a drafted step.
        judge: time of a verdict.
        slowdown: time of a target step among parallel branches over that of a step alone; 1 in the
            paper.
        steps: steps of an answer; None for long ones.
    """

    alpha: float
    c1: float
    judge: float = 0.0
    slowdown: float = 1.0
    steps: int | None = None

    def __post_init__(self) -> None:
        check_in_range(self.alpha, self.c1)
        within("slowdown", self.slowdown, 0 < self.slowdown < float("inf"), "more than 0")
        self.speedup("sync", 1)  # checks the other values

    def speedup(self, schedule: Schedule, depth: int) -> float:
        """Expected speed-up over the target alone."""
        alone = speedup(schedule, self.alpha, self.c1, depth, self.judge, self.steps)
        return alone / self.slowdown


@dataclass(frozen=True)
class DepthChoice:
    """A depth; 0 is no lookahead."""

    schedule: Schedule
    depth: int
    speedup: float


def best_depth(case: Case, schedule: Schedule, max_depth: int = MAX_DEPTH) -> DepthChoice:
    """The smallest depth whose speed-up is within ``TOLERATED_LOSS`` of the highest; 0 if
    lookahead gives none.
    """
    within("max_depth", max_depth, max_depth >= 1, "at least 1")
    choices = [DepthChoice(schedule, 0, 1.0)]
    for depth in range(1, max_depth + 1):
        choices.append(DepthChoice(schedule, depth, case.speedup(schedule, depth)))
    enough = max(choice.speedup for choice in choices) * (1 - TOLERATED_LOSS)
    return next(choice for choice in choices if choice.speedup >= enough)
