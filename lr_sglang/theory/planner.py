"""Finds the best depth, and the best split of a budget between lookahead and the token layer, by
trying all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lr_sglang.config import Schedule
from lr_sglang.theory import judged
from lr_sglang.theory.paper import check, g, k1_of, within

# Speed-ups that differ by less are equal; of equal ones, that with the fewest branches is best.
_SAME = 1 - 1e-9
# The maximum of the option ``depth``.
MAX_DEPTH = 64


@dataclass(frozen=True)
class Case:
    """The conditions of lookahead. Times are in units of one target step among parallel branches.

    Attributes:
        alpha: acceptance of one drafted version of a step.
        c1: time of a drafted step.
        judge: time of a verdict.
        slowdown: time of a target step among parallel branches over that of a step alone; 1 in the
            paper.
        width: drafted versions per step, assumed independent (see ``any_of``).
        steps: steps of an answer; None for long ones.
    """

    alpha: float
    c1: float
    judge: float = 0.0
    slowdown: float = 1.0
    width: int = 1
    steps: int | None = None

    def __post_init__(self) -> None:
        check(self.alpha, self.c1)
        within("slowdown", self.slowdown, 0 < self.slowdown < float("inf"), "more than 0")
        self.speedup("sync", 1)  # checks the other values

    @property
    def accepted(self) -> float:
        """The probability that one of a step's drafted versions is accepted."""
        return judged.any_of(self.alpha, self.width)

    def speedup(self, schedule: Schedule, depth: int, faster: float = 1.0) -> float:
        """Expected speed-up over the target alone.

        Args:
            faster: speed-up of target and draft by the token layer. It does not speed up the judge,
                whose relative time then grows.
        """
        alone = judged.speedup(
            schedule, self.accepted, self.c1, depth, self.judge * faster, self.steps
        )
        return alone * faster / self.slowdown

    def branches(self, schedule: Schedule, depth: int) -> int:
        """Maximum number of concurrent target steps."""
        return judged.branches(schedule, self.c1, k1_of(schedule, depth), self.width)


@dataclass(frozen=True)
class Tokens:
    """The token layer: acceptance rate of drafted tokens, and the time of one over that of a target
    token.
    """

    alpha2: float
    c2: float = 0.0

    def __post_init__(self) -> None:
        check(self.alpha2, self.c2, layer="2")


@dataclass(frozen=True)
class Choice:
    """A depth; 0 is no lookahead."""

    schedule: Schedule
    depth: int
    speedup: float


@dataclass(frozen=True)
class Split:
    """A split of the budget. k1 = 1 is no lookahead (depth 0), k2 = 1 no token layer."""

    schedule: Schedule
    k1: int
    k2: int
    depth: int
    branches: int
    speedup: float


def best_depth(
    case: Case,
    schedule: Schedule,
    max_depth: int = MAX_DEPTH,
    budget: int | None = None,
    spare: float = 0.0,
) -> Choice:
    """The smallest depth with the highest speed-up; 0 if lookahead gives none.

    Args:
        budget: maximum number of concurrent target steps; None for no limit.
        spare: share of the highest speed-up that may be lost for a smaller depth, which wastes
            fewer tokens.
    """
    within("max_depth", max_depth, max_depth >= 1, "at least 1")
    choices = [Choice(schedule, 0, 1.0)]
    for depth in range(1, max_depth + 1):
        if budget is not None and case.branches(schedule, depth) > budget:
            break
        choices.append(Choice(schedule, depth, case.speedup(schedule, depth)))
    enough = max(choice.speedup for choice in choices) * _SAME * (1 - spare)
    return next(choice for choice in choices if choice.speedup >= enough)


def combined(case: Case, tokens: Tokens, schedule: Schedule, depth: int, k2: int) -> float:
    """Expected speed-up of both layers; the paper's h(k1, k2) if verdicts take no time. Depth 0: no
    lookahead.
    """
    faster = g(tokens.alpha2, tokens.c2, k2)
    return case.speedup(schedule, depth, faster) if depth else faster


def splits(
    case: Case, tokens: Tokens, schedule: Schedule, budget: int, max_depth: int = MAX_DEPTH
) -> Iterator[Split]:
    """Every split with (concurrent target steps) x k2 <= budget (section 3.3)."""
    within("budget", budget, budget >= 1, "at least 1")
    within("max_depth", max_depth, max_depth >= 1, "at least 1")
    # In async, the target waits for each verdict if k1 = 1, which is never faster than depth 0:
    # depth 0 replaces it.
    for k1 in range(1, k1_of(schedule, max_depth) + 1):
        depth = 0 if k1 == 1 else k1 - k1_of(schedule, 0)
        branches = case.branches(schedule, depth) if depth else 1
        if branches > budget:
            return
        for k2 in range(1, budget // branches + 1):
            yield Split(
                schedule, k1, k2, depth, branches, combined(case, tokens, schedule, depth, k2)
            )


def best_split(
    case: Case, tokens: Tokens, schedule: Schedule, budget: int, max_depth: int = MAX_DEPTH
) -> Split:
    """The split with the highest speed-up; of equal ones that with the smallest k1, then k2."""
    found = list(splits(case, tokens, schedule, budget, max_depth))
    enough = max(split.speedup for split in found) * _SAME
    return next(split for split in found if split.speedup >= enough)
