"""The adaptive policy: depth and width follow measurements; lookahead stops where it gives no
speed-up.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from lr_sglang.algorithm.policy.experience import TYPICAL, RunStatistics
from lr_sglang.algorithm.policy.fixed import Policy
from lr_sglang.algorithm.policy.forecast import GAIN, Choice, Conditions, Runtime, best
from lr_sglang.algorithm.policy.turns import Turns
from lr_sglang.config import Lookahead
from lr_sglang.engine.branch import Branch
from lr_sglang.steps.tree import Node, StepTree

# Where lookahead gives no speed-up, one step in PROBE is drafted all the same, to detect when it
# would. One in DEEP_PROBE of these probes has depth 2, to measure the cost of more branches.
PROBE, DEEP_PROBE = 24, 4
# Number of steps at the start of a run that are drafted even against the forecast, to measure their
# acceptance.
FIRST = 8
# The minimum forecast speed-up for looking ahead before a step of the target has been measured.
FIRST_GAIN = 1.15
# The highest acceptance rate that is assumed possible.
HOPED = 0.95
# Steps that the target alone writes in one generation: one request for each would cost a fifth of
# the speed.
RUN = 8.0
# Without any measurement, also at start: BLIND is chosen for up to FEW concurrent answers, ALONE
# for more.
BLIND, FEW, ALONE = Choice(4, 1, 0.0), 8, Choice(0, 1, 0.0)


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
        self.choice = ALONE
        # The current turn with its number, the turn in which each branch began, and the time of the
        # last decided step.
        self._turn: tuple[Turns, int] | None = None
        self._turns: dict[Branch | None, tuple[Turns, int] | None] = {}
        self._at = 0.0

    def __enter__(self) -> Adaptive:
        # counted on from the last answer, which may be short; answers that begin together probe at
        # different steps
        self._since = (self.experience.since + self.experience.answers * 7) % PROBE
        self._probes = self.experience.answers
        self.experience.answers += 1
        self._at = self.clock()
        self._choose()
        return self

    def __exit__(self, *_: object) -> None:
        for branch in list(self._open):
            self.ended(branch)
        self.experience.answers, self.experience.since = self.experience.answers - 1, self._since
        if self.experience.explorer is self:
            self.experience.explorer = None

    def width(self, node: Node) -> int:
        if self.tree.ahead(node) >= self.choice.depth or not super().width(node):
            return 0
        return self.choice.width

    def should_expand(self, node: Node) -> bool:
        if node is self.tree.root:
            return True
        furthest = self.choice.depth - (self.look.schedule == "async")
        return self.tree.ahead(node) <= furthest and super().should_expand(node)

    def tokens_alone(self) -> int:
        root, tokens = self.tree.root, self.experience.tokens.value
        if self.choice.depth or root.version.branch or root.children:
            return 0
        if not tokens and not self.experience.load("target").costs:
            return 0
        steps = min(RUN, max(1.0, self._turn[0].left)) if self._turn else RUN
        return min(self.tree.room(root), math.ceil(steps * (tokens or TYPICAL)))

    def decided(self, node: Node) -> None:
        super().decided(node)
        # Of several steps in one generation, only the first refers to the branch.
        branch = node.version.branch
        turn = self._turns.pop(branch, None) if branch else self._turn
        now = self.clock()
        if (
            turn
            and turn == self._turn
            and turn[0].number == turn[1]
            and node.chosen
            and node.chosen.step
        ):
            base, more = self.experience.load("target").line()
            answers = self.experience.answers
            expected = 1 / (base + more * answers)
            gain = self.choice.pace * max(1.0, self.experience.tokens.value) / expected
            tokens = len(node.chosen.step.ids)
            # what the target does alone is foreseen where it writes token after token
            written = not (self.experience.read.weight or self.experience.feeds)
            turn[0].add(tokens, now - self._at, answers, expected, gain, written)
        self._at = now
        self._choose()

    def begun(self, branch: Branch) -> None:
        super().begun(branch)
        self._open[branch] = self.experience.load(branch.role).begin(self.clock())
        if branch.role == "target":
            self._turns[branch] = self._turn

    def ended(self, branch: Branch, tokens: int = 0) -> None:
        super().ended(branch, tokens)
        mark = self._open.pop(branch, None)
        few = 2 * (self.experience.tokens.value or TYPICAL)
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
            self.choice = best(conditions, self.look.depth, self.look.width, worthwhile)
        else:
            self.choice = BLIND if self.experience.answers <= FEW else ALONE
        self._turn = None
        if self.choice.depth and self.experience.load("target").known:
            turns = self.experience.turns(self.experience.answers)
            self._turn = turns, turns.number
            if not turns.ahead:
                self.choice = Choice(0, 1, self.choice.pace)
        if self.choice.depth or self._cannot_pay(conditions):
            return
        self._since += 1
        if self._since >= PROBE or self._explores():
            self.experience.probes += 1
            self._since, self._probes = 0, self._probes + 1
            deep = self._probes % DEEP_PROBE == 0 and conditions is not None
            self.choice = Choice(2 if deep else 1, 1, 0.0)

    def _explores(self) -> bool:
        """Whether this answer drafts the first steps of a run; one answer alone does, if request
        costs are known.
        """
        known = self.experience
        if known.load("target").costs and known.explorer is None:
            known.explorer = self
        return known.probes < FIRST and known.explorer in (None, self)

    def _cannot_pay(self, conditions: Conditions | None) -> bool:
        """Whether looking ahead would not pay even with a draft that costs no time and is nearly
        always accepted.
        """
        if conditions is None:
            return False
        free = Runtime(0.0, 0.0)
        hoped = dataclasses.replace(conditions, alpha=HOPED, others=HOPED, draft=free, judge=0.0)
        return not best(hoped, self.look.depth, self.look.width).depth
