"""Forecast of the speed-up of a depth and a width, by the paper's formulas, under the load that
they cause.

Times are in seconds. The forecast assumes the same depth and width for all answers, so that no
answer gains at the cost of the others. ``docs/policies.md`` has the derivation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from lr_sglang.config import Lookahead, Role, Schedule
from lr_sglang.theory.judged import speedup
from lr_sglang.theory.paper import expected_run

# Upper limits of alpha and c1, just below 1, where the formulas have a pole.
_MAX_ALPHA = 0.995
_MAX_C1 = 0.99
# Iterations between concurrent requests and durations.
_ROUNDS = 8
# They end when the steps per second change by less than this share.
_SETTLED = 1e-4
# The minimum speed-up for looking ahead.
GAIN = 1.01
# And that of a deeper or wider shape over a smaller one: steps are not of equal length, so that the
# more are in flight, the more wait for a long one, which the formulas do not know.
DEEPER = 1.03
# Slots for requests that were cancelled and have not left the runtime yet.
SPARE_SLOTS = 2
# The maximum number of prefixes in a tree of width > 1 under the adaptive policy.
MAX_NODES = 64


def with_prefills(seconds: float, prefills: float, answers: int) -> float:
    """The time that some ``seconds`` of work take while requests arrive all along, whose prefills
    would take ``prefills`` seconds one after another. What arrives from other answers during a
    prefill shares the next; the requests of one answer come at different times.
    """
    # n prefills of p seconds in the time t, in which r arrive, a share s of them from others:
    # n = r / (1 + s r p / t)
    others = 1 - 1 / max(1, answers)
    half = (seconds + (1 - others) * prefills) / 2
    return half + math.sqrt(half * half + others * seconds * prefills)


def without_prefills(seconds: float, prefills: float, answers: int) -> float:
    """The inverse of ``with_prefills``; 0 where they would take longer."""
    others = 1 - 1 / max(1, answers)
    return max(0.0, seconds - (1 - others) * prefills) * seconds / (seconds + others * prefills)


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step with n concurrent requests: ``base + more n``.

    Attributes:
        reading: seconds per prefilled drafted step; ``prefill``: seconds of the forward pass that
            prefills it. All other requests wait for both.
    """

    base: float
    more: float
    reading: float = 0.0
    prefill: float = 0.0

    def alone(self, requests: float) -> float:
        """Seconds of a step with this number of concurrent requests."""
        return self.base + self.more * max(1.0, requests)

    def ahead(self, requests: float, answers: int) -> float:
        """Seconds of a step with this number of concurrent requests of so many answers, each of
        which prefills a drafted step.
        """
        busy = self.alone(requests) + self.reading * requests
        return with_prefills(busy, requests * self.prefill, answers)

    def sooner(self, gain: float) -> StepTimes:
        """Those of a target that writes a step so many times as fast."""
        return replace(self, base=self.base / gain, more=self.more / gain)


@dataclass(frozen=True)
class Conditions:
    """The measurements on which a choice of depth and width is based.

    Attributes:
        alpha: acceptance of a step's first draft; ``others``: of each further draft where the first
            is rejected.
        judge: seconds of a verdict.
        answers: number of concurrent answers.
    """

    schedule: Schedule
    alpha: float
    others: float
    target: StepTimes
    draft: StepTimes
    judge: float
    answers: int

    def accepted(self, width: int) -> float:
        """The probability that at least one of ``width`` drafts is accepted."""
        return min(_MAX_ALPHA, 1 - (1 - self.alpha) * (1 - self.others) ** (width - 1))


@dataclass(frozen=True)
class TreeShape:
    """A depth (0: no lookahead) and a width, and the steps per second of one answer."""

    depth: int
    width: int
    steps_per_second: float


@lru_cache(maxsize=4096)
def fastest_shape(conditions: Conditions, depth: int, width: int) -> TreeShape:
    """The fastest depth and width up to these; depth 0 only where none is allowed."""
    found = TreeShape(0, 1, 0.0)
    for wide in range(1, width + 1):
        fallen = 0
        for deep in range(1 if conditions.schedule == "sync" else 2, deepest(depth, wide) + 1):
            per_second = forecast(conditions, deep, wide)
            if not found.depth or per_second > found.steps_per_second * DEEPER:
                found = TreeShape(deep, wide, per_second)
                fallen = 0
            else:
                fallen += 1
            if fallen > 3:
                break
    return found


def best_shape(conditions: Conditions, depth: int, width: int) -> TreeShape:
    """The fastest shape, or depth 0 where that is not ``GAIN`` times as fast as the target
    alone.
    """
    plain = TreeShape(0, 1, 1 / conditions.target.alone(conditions.answers))
    found = fastest_shape(conditions, depth, width)
    return found if found.steps_per_second > plain.steps_per_second * GAIN else plain


def rounded(value: float) -> float:
    """Rounds to about 3 %."""
    return math.exp(round(math.log(value) * 32) / 32) if value > 0 else 0.0


@lru_cache(maxsize=4096)
def forecast(conditions: Conditions, depth: int, width: int) -> float:
    """Steps per second of each answer."""
    accepted = conditions.accepted(width)
    answers = conditions.answers
    target = float(answers)  # requests at once on its runtime
    draft = 1.0
    step = per_second = 0.0
    for _ in range(_ROUNDS):
        step = conditions.target.ahead(target, answers)
        c1 = conditions.draft.ahead(draft, answers) / step
        judge = conditions.judge / step
        if c1 >= _MAX_C1:
            return 0.0  # every draft would be late
        # in the time of a target step
        steps = speedup(conditions.schedule, accepted, c1, depth, judge)
        written, drafted = branch_times(conditions.schedule, accepted, c1, judge, depth, width)
        target = (target + answers * max(1.0, steps * written)) / 2
        draft = (draft + answers * steps * drafted) / 2
        before = per_second
        per_second = steps / step
        if abs(per_second - before) <= _SETTLED * per_second:
            break
    return per_second


def branch_times(
    schedule: Schedule, accepted: float, c1: float, judge: float, depth: int, width: int
) -> tuple[float, float]:
    """Time that target and draft spend for a kept step, in target steps.

    async: when a verdict arrives, the branches m steps ahead have run for ``1 + judge - m c1``, or
    for ``(depth - m) c1`` if they waited for the window to move, once in ``depth`` accepted steps.
    A rejection drops all ``width ** m`` of them, an acceptance those after other versions. sync: a
    cycle completes all branches.
    """
    if schedule == "sync":
        kept = expected_run(accepted, depth + 1)
        sizes = [width**m for m in range(depth + 1)]
        return sum(sizes) / kept, c1 * sum(sizes[1:]) / kept
    refused = 1 - accepted
    target = 1.0
    draft = c1
    for m in range(1, depth + 1):
        dropped = refused * width**m + accepted * (width**m - width ** (m - 1))
        if m < depth:
            waited = 0.0
            if depth * c1 < 1 + judge:
                waited = 1 - (1 - accepted ** (depth - m)) / (1 - accepted**depth)
            target += dropped * (1 - waited) * min(1.0, max(0.0, 1 + judge - m * c1))
            target += dropped * waited * min(1.0, (depth - m) * c1)
        draft += dropped * min(c1, max(0.0, 1 + judge - (m - 1) * c1))
    return target, draft


def furthest(schedule: Schedule, depth: int) -> int:
    """How many steps ahead of the answer the target writes: in sync also after the last drafted
    one.
    """
    return depth if schedule == "sync" else max(0, depth - 1)


def in_flight(look: Lookahead, role: Role) -> int:
    """The maximum of one answer's concurrent requests to a role.

    There are ``width ** i`` prefixes that are i steps ahead (paper section 3.1, multi-branch). The
    target writes after each of them up to ``furthest``; drafts in flight follow different ones. A
    verdict may be asked for every drafted step.
    """
    if look.policy == "adaptive" and look.width > 1:
        shapes = [
            (deep, wide)
            for wide in range(1, look.width + 1)
            for deep in range(1, deepest(look.depth, wide) + 1)
        ]
        return max(
            in_flight(look.replace(policy="fixed", depth=deep, width=wide), role)
            for deep, wide in shapes
        )
    sizes = [look.width**i for i in range(look.depth + 1)]
    if role == "target":
        return sum(sizes[: furthest(look.schedule, look.depth) + 1])
    return sizes[-1] if role == "draft" else sum(sizes[1:])


def deepest(depth: int, width: int) -> int:
    """The largest depth of the adaptive policy at this width; ``depth`` is its limit at width 1."""
    fitting = (
        deep
        for deep in range(2, depth + 1)
        if width == 1 or sum(width**i for i in range(deep + 1)) <= MAX_NODES
    )
    return max(fitting, default=min(depth, 1))


def running_requests(look: Lookahead, role: Role, answers: int) -> int:
    """Requests that a role's runtime should run at a time for ``answers`` concurrent answers."""
    return answers * in_flight(look, role) + SPARE_SLOTS


def slot_limit(
    max_running_requests: int | None, kv_tokens: int | None, look: Lookahead
) -> int | None:
    """Requests that a runtime can have in flight without a queue; None if there is no known limit.

    Args:
        max_running_requests: requests that the runtime runs at a time; None if unknown.
        kv_tokens: tokens that its KV cache holds; None if unknown. Besides the prefix that it
            shares, a branch occupies at most its own step and the drafted step before it.
    """
    limits = [
        max_running_requests,
        None if kv_tokens is None else kv_tokens // (2 * look.max_step_tokens),
    ]
    return min((known for known in limits if known is not None), default=None)
