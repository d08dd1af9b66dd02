"""What a depth and a width would give: the theory's speed-up, among as many branches as all answers would then have.

Times are seconds. Every answer is taken to do the same, so that what one would gain at the cost of the others does not
count as a gain. ``docs/policies.md`` has the derivation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lr_sglang.algorithm.policy.room import deepest
from lr_sglang.config import Schedule
from lr_sglang.theory.judged import speedup
from lr_sglang.theory.paper import expected_run

# From here on a draft is as good as always right, or a draft as slow as the target: the formulas end there.
_ALPHA, _C1 = 0.995, 0.99
_ROUNDS = 8


@dataclass(frozen=True)
class Runtime:
    """Seconds of a step with n requests at once: ``base + more n``."""

    base: float
    more: float

    def step(self, requests: float) -> float:
        """Seconds of a step among so many requests."""
        return self.base + self.more * max(1.0, requests)


@dataclass(frozen=True)
class Conditions:
    """What there is to know for a choice.

    Attributes:
        alpha: acceptance of a step's first draft; ``others`` of each further one where the first is refused.
        judge: seconds of a verdict.
        answers: at once.
        hedge: a verdict holds nothing up.
    """

    schedule: Schedule
    alpha: float
    others: float
    target: Runtime
    draft: Runtime
    judge: float
    answers: int
    hedge: bool = False

    def accepted(self, width: int) -> float:
        """That one of so many drafts is."""
        return min(_ALPHA, 1 - (1 - self.alpha) * (1 - self.others) ** (width - 1))


@dataclass(frozen=True)
class Choice:
    """A depth, 0 is none; ``pace`` is the steps per second of one answer."""

    depth: int
    width: int
    pace: float


@lru_cache(maxsize=4096)
def best(scene: Conditions, depth: int, width: int, worthwhile: float = 1.01) -> Choice:
    """The best of all depths and widths up to these; none if it is not worth while, as a factor over none."""
    plain = Choice(0, 1, 1 / scene.target.step(scene.answers))
    found = plain
    for wide in range(1, width + 1):
        fallen = 0
        for deep in range(1 if scene.schedule == "sync" else 2, deepest(depth, wide) + 1):
            pace = forecast(scene, deep, wide)
            if pace > found.pace * (1 + 1e-9):
                found, fallen = Choice(deep, wide, pace), 0
            else:
                fallen += 1
            if fallen > 3:
                break
    return found if found.pace > plain.pace * worthwhile else plain


def forecast(scene: Conditions, depth: int, width: int) -> float:
    """Steps per second of each answer."""
    accepted, answers = scene.accepted(width), scene.answers
    target, draft = float(answers), 1.0  # requests at once on the two runtimes
    step = pace = 0.0
    for _ in range(_ROUNDS):
        step = scene.target.step(target)
        c1, judge = scene.draft.step(draft) / step, scene.judge / step
        if c1 >= _C1:
            return 0.0  # every draft would be late
        waits = 0.0 if scene.hedge else judge
        steps = speedup(scene.schedule, accepted, c1, depth, waits)  # in the time of a target step
        written, drafted = branches(scene.schedule, accepted, c1, judge, depth, width)
        if scene.hedge:
            written += judge
        target = (target + answers * max(1.0, steps * written)) / 2
        draft = (draft + answers * steps * drafted) / 2
        pace = steps / step
    return pace


def branches(
    schedule: Schedule, accepted: float, c1: float, judge: float, depth: int, width: int
) -> tuple[float, float]:
    """Time that target and draft spend for a kept step, in target steps.

    async: when a verdict comes, the branches m steps after its own have been written for ``1 + judge - m c1``; or for
    ``(depth - m) c1``, where they had to wait for a place in the window, which opens anew every ``depth`` steps of an
    accepted run. A refusal drops all ``width ** m`` of them, an acceptance those that follow another version.
    sync: a cycle writes them all.
    """
    if schedule == "sync":
        kept = expected_run(accepted, depth + 1)
        sizes = [width**m for m in range(depth + 1)]
        return sum(sizes) / kept, c1 * sum(sizes[1:]) / kept
    refused, target, draft = 1 - accepted, 1.0, c1
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
