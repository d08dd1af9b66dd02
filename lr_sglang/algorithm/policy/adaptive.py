"""The adaptive policy: depth and width follow measurements; lookahead stops where it gives no
speed-up.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from lr_sglang.algorithm.policy.experience import TYPICAL_TOKENS, RunStatistics
from lr_sglang.algorithm.policy.fixed import Policy
from lr_sglang.algorithm.policy.forecast import (
    GAIN,
    Conditions,
    StepTimes,
    TreeShape,
    best_shape,
    furthest,
)
from lr_sglang.algorithm.policy.turns import Turns, TurnWay
from lr_sglang.config import Lookahead
from lr_sglang.steps.branch import Branch
from lr_sglang.steps.tree import Node, StepTree

# Where lookahead gives no speed-up, one step in so many of all answers (of up to MOST_ANSWERS at
# once) is drafted all the same, to detect when it would.
PROBE_INTERVAL = 24
MOST_ANSWERS = 8
# One in so many of these probes has depth 2, to measure the cost of more branches.
DEEP_PROBE = 4
# Number of steps at the start of a run that are drafted even against the forecast, to measure their
# acceptance.
FIRST_PROBES = 8
# The minimum forecast speed-up for looking ahead before a step of the target has been measured.
FIRST_GAIN = 1.15
# The highest acceptance rate that is assumed possible.
HIGHEST_ALPHA = 0.95
# Steps that the target alone writes in one generation, times the number of answers (up to
# MOST_ANSWERS), all of which wait for its prefill: one request for each would cost a fifth of the
# speed.
STEPS_ALONE = 8.0
# Without any measurement, also at start: UNMEASURED is chosen for up to FEW_ANSWERS concurrent
# answers, NO_LOOKAHEAD for more.
UNMEASURED = TreeShape(4, 1, 0.0)
NO_LOOKAHEAD = TreeShape(0, 1, 0.0)
FEW_ANSWERS = 8


@dataclasses.dataclass(frozen=True)
class Part:
    """Where a branch of the target began: in which turn, of which way; and whether branches of
    another way were in flight then.
    """

    turns: Turns
    way: TurnWay
    number: int
    mixed: bool


class Adaptive(Policy):
    """The fixed policy with a depth and a width that are chosen at every step, up to those in the
    settings.

    A forecast chooses them; ``Turns`` then measures whether looking ahead is faster than the target
    alone.
    """

    def __init__(
        self,
        look: Lookahead,
        tree: StepTree,
        experience: RunStatistics,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        super().__init__(look, tree, experience, clock)
        self._open: dict[Branch, tuple[float, float]] = {}
        self._since = self._probes = 0
        self.choice = NO_LOOKAHEAD
        # The turns that the next step belongs to, the part of them in which each branch began and
        # in which the last steps were written, and the time of the last decided step.
        self._turn: Turns | None = None
        self._parts: dict[Branch, Part] = {}
        self._ways: dict[Branch, TurnWay] = {}  # of branches in flight
        self._part: Part | None = None
        self._at = 0.0

    def __enter__(self) -> Adaptive:
        # counted on from the last answer, which may be short; answers that begin together probe at
        # different steps
        self._since = (self.experience.since + self.experience.answers * 7) % PROBE_INTERVAL
        self._probes = self.experience.answers
        self.experience.answers += 1
        self._at = self.clock()
        self._choose()
        return self

    def __exit__(self, *_: object) -> None:
        for branch in list(self._open):
            self.ended(branch)
        self.experience.answers -= 1
        self.experience.since = self._since
        if self.experience.explorer is self:
            self.experience.explorer = None

    def width(self, node: Node) -> int:
        if self.tree.ahead(node) >= self.choice.depth or not super().width(node):
            return 0
        return self.choice.width

    @property
    def furthest(self) -> int:
        # a choice without measurements, or to measure, knows no settings
        return furthest(self.look.schedule, min(self.choice.depth, self.look.depth))

    def should_expand(self, node: Node) -> bool:
        return node is self.tree.root or super().should_expand(node)

    def tokens_alone(self) -> int:
        root = self.tree.root
        tokens = self.experience.tokens.value
        if self.choice.depth or root.version.branch or root.children:
            return 0
        if not tokens and not self.experience.load("target").costs:
            return 0
        steps = STEPS_ALONE * min(self.experience.answers, MOST_ANSWERS)
        if self._turn is not None:
            steps = min(steps, max(1.0, self._turn.left))
        return min(self.tree.room(root), math.ceil(steps * (tokens or TYPICAL_TOKENS)))

    def decided(self, node: Node) -> None:
        super().decided(node)
        now = self.clock()
        before = self._part
        mixed = False
        if node.version.branch:
            self._part = self._parts.get(node.version.branch)
            # the first step has waited for what was in flight
            if before is not None and self._part is not None:
                mixed = before.number != self._part.number
        part = self._part
        self._parts = {one: at for one, at in self._parts.items() if one.outcome is None}
        if part and node.chosen and node.chosen.step:
            known = self.experience
            expected = 1 / known.token_seconds()
            gain = self.choice.pace * max(1.0, known.tokens.value) / expected
            sure = not (known.can_read or known.feeds or known.layered)
            part.turns.add(
                len(node.chosen.step.ids),
                now - self._at,
                known.answers,
                expected,
                gain,
                sure,
                of=(part.way, part.number),
                mixed=part.mixed or self._mixed(part.way) or (mixed and part.way != "alone"),
                ways=known.ways(),
            )
        self._at = now
        self._choose()

    def begun(self, branch: Branch) -> None:
        super().begun(branch)
        self._open[branch] = self.experience.load(branch.role).begin(self.clock())
        if branch.role == "target" and self._turn is not None:
            turns = self._turn
            part = Part(turns, turns.way, turns.number, self._mixed(turns.way))
            same = next((one for one in self._parts.values() if one == part), part)
            self._parts[branch] = part = same
            self.experience.in_flight[turns.way] += 1
            self._ways[branch] = turns.way
            if not turns.ahead:
                self._part = part  # of all steps of one generation
        elif branch.role == "target":
            self._part = None

    def _mixed(self, way: TurnWay) -> bool:
        """Whether branches of another way are in flight."""
        return any(number and one != way for one, number in self.experience.in_flight.items())

    def ended(self, branch: Branch, tokens: int = 0) -> None:
        super().ended(branch, tokens)
        mark = self._open.pop(branch, None)
        way = self._ways.pop(branch, None)
        if way is not None:
            self.experience.in_flight[way] -= 1
        few = 2 * (self.experience.tokens.value or TYPICAL_TOKENS)
        if branch.position == 0 and tokens < few and self.experience.load(branch.role).costs:
            # its time includes the prompt's prefill: the costs measured at start are used instead
            tokens = 0
        if mark is not None:
            alone = self.experience.answers if tokens >= few else 0
            self.experience.load(branch.role).end(self.clock(), mark, tokens, alone)

    def _choose(self) -> None:
        conditions = self.experience.conditions(self.look.schedule, self.alpha())
        if conditions:
            worthwhile = GAIN if self.experience.load("target").known else FIRST_GAIN
            self.choice = best_shape(conditions, self.look.depth, self.look.width, worthwhile)
        else:
            self.choice = UNMEASURED if self.experience.answers <= FEW_ANSWERS else NO_LOOKAHEAD
        self._turn = self.experience.way = None
        target = self.experience.load("target")
        if self.choice.depth and (target.known or target.costs):
            self._turn = turns = self.experience.turns(self.experience.answers)
            self.experience.way = turns.way
            if not turns.ahead:
                self.choice = TreeShape(0, 1, self.choice.pace)
        if self.choice.depth or self._turn is not None or self._cannot_pay(conditions):
            return
        self._since += 1
        interval = PROBE_INTERVAL * min(self.experience.answers, MOST_ANSWERS)
        if self._since >= interval or self._explores():
            self.experience.probes += 1
            self._since = 0
            self._probes += 1
            self._turn = None  # what a probe takes belongs to no way
            deep = self._probes % DEEP_PROBE == 0 and conditions is not None
            self.choice = TreeShape(2 if deep else 1, 1, 0.0)

    def _explores(self) -> bool:
        """Whether this answer drafts the first steps of a run; one answer alone does, if request
        costs are known.
        """
        known = self.experience
        if known.load("target").costs and known.explorer is None:
            known.explorer = self
        return known.probes < FIRST_PROBES and known.explorer in (None, self)

    def _cannot_pay(self, conditions: Conditions | None) -> bool:
        """Whether looking ahead would not pay even with a draft that costs no time and is nearly
        always accepted.
        """
        if conditions is None:
            return False
        free = StepTimes(0.0, 0.0)
        alpha = HIGHEST_ALPHA
        hoped = dataclasses.replace(conditions, alpha=alpha, others=alpha, draft=free, judge=0.0)
        return not best_shape(hoped, self.look.depth, self.look.width).depth
