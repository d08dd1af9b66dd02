"""Finds the best depth, by trying all."""

from __future__ import annotations

from dataclasses import dataclass

from lr_sglang.config import Schedule
from lr_sglang.theory import judged
from lr_sglang.theory.paper import check, within

# The maximum of the option ``depth``.
MAX_DEPTH = 64
# Share of the highest speed-up that may be lost for a smaller depth, which wastes fewer branches.
SPARE = 0.02


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
        check(self.alpha, self.c1)
        within("slowdown", self.slowdown, 0 < self.slowdown < float("inf"), "more than 0")
        self.speedup("sync", 1)  # checks the other values

    def speedup(self, schedule: Schedule, depth: int) -> float:
        """Expected speed-up over the target alone."""
        alone = judged.speedup(schedule, self.alpha, self.c1, depth, self.judge, self.steps)
        return alone / self.slowdown


@dataclass(frozen=True)
class Choice:
    """A depth; 0 is no lookahead."""

    schedule: Schedule
    depth: int
    speedup: float


def best_depth(case: Case, schedule: Schedule, max_depth: int = MAX_DEPTH) -> Choice:
    """The smallest depth whose speed-up is within ``SPARE`` of the highest; 0 if lookahead gives
    none.
    """
    within("max_depth", max_depth, max_depth >= 1, "at least 1")
    choices = [Choice(schedule, 0, 1.0)]
    for depth in range(1, max_depth + 1):
        choices.append(Choice(schedule, depth, case.speedup(schedule, depth)))
    enough = max(choice.speedup for choice in choices) * (1 - SPARE)
    return next(choice for choice in choices if choice.speedup >= enough)
