"""Our extension of the paper's speed-ups: verdicts take time, answers end, a step may have several drafted versions.

``judge`` is the time of a verdict over the time of a target step, 0 or more. The derivation is in ``docs/theory.md``;
it follows what ``programs/lookahead.py`` does, and the tests hold it against that program on a simulated clock.
"""

from __future__ import annotations

import math

from lr_sglang.config import Schedule
from lr_sglang.theory.paper import check, expected_run, f_async, parallel, whole, within

# So long may an answer be whose end is taken into account.
MAX_STEPS = 500
# Runs less likely than this are left out of a sum.
_NEVER = 1e-12


def speedup(
    schedule: Schedule, alpha: float, c1: float, depth: int, judge: float = 0.0, steps: int | None = None
) -> float:
    """Expected speed-up of the programs over the target alone, at this depth.

    sync: a cycle drafts ``depth`` steps, writes ``depth + 1`` and waits for all verdicts, which come at once:
    (1 - alpha^(depth+1)) / ((1 - alpha)(1 + depth c1 + judge)).

    async: a step counts as done, and frees its place in the window, when its verdict is there. So the target is in
    effect slower by 1 + judge, and the draft faster beside it: f_async(alpha, c1/(1 + judge), depth) / (1 + judge).

    Args:
        steps: how many steps an answer has. The formulas are for long answers; the last cycle of a short one has less
            to gain, and ``steps / answer_time`` is returned then.
    """
    if steps is not None:
        return steps / answer_time(schedule, alpha, c1, depth, judge, steps)
    _check(alpha, c1, depth, judge)
    if schedule == "sync":
        return expected_run(alpha, depth + 1) / (1 + depth * c1 + judge)
    return f_async(alpha, c1 / (1 + judge), depth) / (1 + judge)


def answer_time(schedule: Schedule, alpha: float, c1: float, depth: int, judge: float, steps: int) -> float:
    """Expected time of an answer of ``steps`` steps, in target steps; the target alone needs ``steps``.

    With n steps to go, a cycle that ends with step x (counted from 0) leaves n - x - 1, and takes until x's verdict:
    D(n) = sum over x < n of P(cycle ends with x) (time(x) + D(n - x - 1)). Nothing is drafted beyond the end.
    """
    _check(alpha, c1, depth, judge)
    within("steps", steps, 1 <= steps <= MAX_STEPS, f"in 1..{MAX_STEPS} (left out, it means a long answer)")
    times = _verdicts(c1, depth, judge, steps)
    expected = [0.0]
    for left in range(1, steps + 1):
        longest = left - 1 if schedule == "async" else min(depth, left - 1)
        cycle = min(depth, left) * c1 + 1 + judge
        total, reached = 0.0, 1.0
        for x in range(longest + 1):
            ends = reached * (1 - alpha) if x < longest else reached
            total += ends * ((times[x] if schedule == "async" else cycle) + expected[left - x - 1])
            reached *= alpha
            if reached < _NEVER:
                break
        expected.append(total)
    return expected[steps]


def _verdicts(c1: float, depth: int, judge: float, steps: int) -> list[float]:
    """When each step of an async cycle has its verdict: its target starts when the draft before it and a place in the
    window are there."""
    starts = [0.0]
    for j in range(1, steps):
        freed = starts[j - depth] + 1 + judge if j >= depth else 0.0
        starts.append(max(starts[j - 1] + c1, freed))
    return [start + 1 + judge for start in starts]


def _check(alpha: float, c1: float, depth: int = 1, judge: float = 0.0, width: int = 1) -> None:
    check(alpha, c1)
    within("depth", depth, depth >= 1, "at least 1")
    within("judge", judge, 0 <= judge < math.inf, "0 or more")
    within("width", width, width >= 1, "at least 1")


def deepest_useful(c1: float, judge: float = 0.0) -> float:
    """ceil((1 + judge)/c1): from this depth on the async schedule is limited by the draft, and gains no more."""
    _check(0, c1, judge=judge)
    return whole((1 + judge) / c1) if c1 else math.inf


def any_of(alpha: float, width: int) -> float:
    """1 - (1 - alpha)^width: that one of ``width`` drafted versions is accepted (section 3.1, multi-branch).

    An upper limit: the versions are compared with the same target step, so they are not independent. The paper measured
    0.73 for two versions with 0.63 each, not 0.86.
    """
    _check(alpha, 0, width=width)
    return 1 - (1 - alpha) ** width


def one_of(alpha: float, width: int) -> float:
    """The inverse of ``any_of``: the acceptance of one version where one of ``width`` is accepted with ``alpha``."""
    _check(alpha, 0, width=width)
    return float(1 - (1 - alpha) ** (1 / width))


def branches(schedule: Schedule, c1: float, k1: int, width: int = 1) -> int:
    """Target steps that are written at once, at most: ``parallel`` levels of the tree of drafted versions.

    A verdict keeps a place in the window, but no longer the target; so the judge makes no difference here.
    """
    _check(0, c1, width=width)
    return sum(width**level for level in range(parallel(schedule, c1, k1)))
