"""The adaptive policy: the way to write steps, depth and width follow measurements."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable

from lr_sglang.algorithm.policy.experience import PRIOR_WEIGHT, TYPICAL_TOKENS, RunStatistics
from lr_sglang.algorithm.policy.fixed import Policy
from lr_sglang.algorithm.policy.forecast import (
    Conditions,
    StepTimes,
    TreeShape,
    best_shape,
    fastest_shape,
    furthest,
)
from lr_sglang.algorithm.policy.turns import LOOKS_AHEAD, Turns, Way
from lr_sglang.config import Lookahead
from lr_sglang.steps.branch import Branch
from lr_sglang.steps.tree import Node, StepTree

# Where the target writes alone, one step in so many of all answers (of up to MOST_ANSWERS at once)
# is drafted and judged all the same, to detect when looking ahead would pay.
PROBE_INTERVAL = 24
MOST_ANSWERS = 8
# One in so many of these probes has depth 2, to measure the cost of more branches.
DEEP_PROBE = 4
# Number of steps at the start of a run that are drafted in any case, to measure their acceptance.
FIRST_PROBES = 2
# Several answers draft on, until so many verdicts are known, while looking ahead may pay.
MOST_PROBES = 16
# The highest acceptance rate that is assumed possible.
HIGHEST_ALPHA = 0.95
# Steps that the target alone writes in one generation, times the number of answers (up to
# MOST_ANSWERS), all of which wait for its prefill: one request for each would cost a fifth of the
# speed.
STEPS_ALONE = 8.0
# How much a time says of the way of its turn in which other answers are still written in another.
MIXED = 0.25
# Without any measurement, also at start: UNMEASURED is chosen for up to FEW_ANSWERS concurrent
# answers, NO_LOOKAHEAD for more.
UNMEASURED = TreeShape(4, 1, 0.0)
NO_LOOKAHEAD = TreeShape(0, 1, 0.0)
FEW_ANSWERS = 8


@dataclasses.dataclass
class Together:
    """Steps that were kept at the same time, which were written since ``began``."""

    turns: Turns
    began: float
    tokens: int = 0
    steps: int = 0


class Adaptive(Policy):
    """Chooses at every step the way in which it is written, and a depth and a width up to those in
    the settings.

    ``Turns`` chooses the way by what each was measured to give, a forecast the depth and the width.
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
        self._choice = NO_LOOKAHEAD
        self._chosen = False  # since the last step was kept
        # The turns that the next step belongs to; what was kept and is not counted yet; the time of
        # the last decided step.
        self._turn: Turns | None = None
        self._aside: Way | None = None  # of a step that belongs to no turn
        self._together: Together | None = None
        self._at = 0.0

    def __enter__(self) -> Adaptive:
        # counted on from the last answer, which may be short; answers that begin together probe at
        # different steps
        self._since = (self.experience.since + self.experience.answers * 7) % PROBE_INTERVAL
        self._probes = self.experience.answers
        self.experience.answers += 1
        self._at = self.clock()
        return self

    def __exit__(self, *_: object) -> None:
        self._count()
        for branch in list(self._open):
            self.ended(branch)
        self.experience.answers -= 1
        self.experience.since = self._since
        self.experience.writing.pop(self, None)
        if self.experience.explorer is self:
            self.experience.explorer = None

    @property
    def choice(self) -> TreeShape:
        """The depth and the width of the next steps; depth 0 where the target writes alone."""
        if not self._chosen:
            self._chosen = True
            self._count()
            self._choose()
        return self._choice

    @property
    def way(self) -> Way | None:
        known = self.experience
        waits = not self.choice.depth and self._aside == "portions"
        if waits and known.reads.foreseen_gain(known.read_times()) <= 1:
            return None  # as the first reads have shown
        return self._aside if self._turn is None else self._turn.way

    def width(self, node: Node) -> int:
        if self.tree.ahead(node) >= self.choice.depth or not super().width(node):
            return 0
        return self.choice.width

    @property
    def furthest(self) -> int:
        # a choice without measurements, or to measure, knows no settings
        return furthest(self.look.schedule, min(self.choice.depth, self.look.depth))

    def tokens_alone(self) -> int:
        root = self.tree.root
        tokens = self.experience.tokens.value
        if self.choice.depth or root.version.branch or root.children:
            return 0
        if not tokens and not self.experience.load("target").costs:
            return 0
        steps = 1.0  # until all answers write in this way, and where another is chosen soon
        turn = self._turn
        if turn is not None and self.experience.writing.get(self, turn.way) == turn.way:
            steps = STEPS_ALONE * min(self.experience.answers, MOST_ANSWERS)
            steps = steps if turn.sure else min(steps, max(1.0, turn.left))
        return min(self.tree.room(root), math.ceil(steps * (tokens or TYPICAL_TOKENS)))

    def learn(self, node: Node) -> None:
        super().learn(node)
        now = self.clock()
        if now > self._at:
            self._count()
        turns = self._turn
        if turns is not None:
            self._note(turns)
            if node.chosen and node.chosen.step:
                if self._together is None:
                    self._together = Together(turns, self._at)
                self._together.tokens += len(node.chosen.step.ids)
                self._together.steps += 1
        self._at = now
        self._since += not self._choice.depth
        self._chosen = False

    def _count(self) -> None:
        """Counts what was kept for the ways of the turns in which it was written."""
        made = self._together
        self._together = None
        if made is not None:
            made.turns.share(
                made.began,
                self._at,
                made.tokens,
                answers=max(1, self.experience.answers),
                steps=made.steps,
            )

    def _note(self, turns: Turns) -> None:
        """Notes how much what is written from now on says of the way of this turn."""
        weight = 1.0
        if self.experience.written_otherwise(turns.way):
            # the first step of a single answer has waited for what was in flight, or had it ahead
            weight = MIXED if self.experience.answers > 1 else 0.0
        turns.note(self.clock(), weight)

    def begun(self, branch: Branch) -> None:
        super().begun(branch)
        self._open[branch] = self.experience.load(branch.role).begin(self.clock())
        if branch.role == "target":
            way = self._aside or ("written" if self._choice.depth else "alone")
            self.experience.writing[self] = way if self._turn is None else self._turn.way

    def ended(self, branch: Branch, tokens: int = 0) -> None:
        super().ended(branch, tokens)
        mark = self._open.pop(branch, None)
        if mark is None:
            return
        load = self.experience.load(branch.role)
        few = 2 * (self.experience.tokens.value or TYPICAL_TOKENS)
        ways = Counter(self.experience.writing.values())
        if branch.role == "target" and ways["alone"] + ways["written"] < ways.total():
            tokens = 0  # its passes have waited for what is read, or verified, beside it
        if branch.position == 0 and tokens < few and load.costs:
            tokens = 0  # its time includes the prompt's prefill; what start measured is used
        load.end(self.clock(), mark, tokens, ways["alone"], self.experience.answers)

    def _choose(self) -> None:
        known = self.experience
        conditions = known.conditions(self.look.schedule, self.alpha())
        self._turn = self._aside = None
        if conditions is None:
            self._choice = UNMEASURED if known.answers <= FEW_ANSWERS else NO_LOOKAHEAD
        else:
            self._choice = NO_LOOKAHEAD
            ahead = fastest_shape(conditions, self.look.depth, self.look.width)
            forecasts = known.forecasts(conditions, ahead)
            if self._waits():
                self._aside = known.helped(forecasts)
            else:
                self._turn = turns = known.turns(known.answers)
                turns.choose(forecasts, answers=known.answers)
                self._note(turns)
                self._choice = ahead if turns.ahead else NO_LOOKAHEAD
        if self._choice.depth or (self._cannot_pay(conditions) and not self._waits()):
            return
        interval = PROBE_INTERVAL * min(known.answers, MOST_ANSWERS)
        if self._since >= interval or self._explores(conditions):
            known.probes += 1
            self._since = 0
            self._probes += 1
            self._aside = None if self._turn is None else "written"
            self._turn = None  # what a probe takes belongs to no way
            deep = self._probes % DEEP_PROBE == 0 and conditions is not None
            self._choice = TreeShape(2 if deep else 1, 1, 0.0)

    def _explores(self, conditions: Conditions | None) -> bool:
        """Whether this answer drafts its next step to learn from it: the first steps of a run are
        one answer's; after them every answer's that may show that looking ahead is the fastest way.
        """
        known = self.experience
        if known.load("target").costs and known.explorer is None:
            known.explorer = self
        if self._learns():
            return known.explorer in (None, self)
        return known.answers > 1 and self._hopes(conditions)

    def _hopes(self, conditions: Conditions | None) -> bool:
        """Whether looking ahead was not tried, but is the fastest way if drafts are accepted more
        often than the few verdicts say, by a standard error.
        """
        known = self.experience
        turns = self._turn
        verdicts = known.first.weight
        if conditions is None or turns is None or verdicts >= MOST_PROBES:
            return False
        if any(turns.pace(way) for way in LOOKS_AHEAD):
            return False
        error = math.sqrt(conditions.alpha * (1 - conditions.alpha) / (verdicts + PRIOR_WEIGHT))
        alpha = round(min(HIGHEST_ALPHA, conditions.alpha + error), 2)
        hoped = dataclasses.replace(conditions, alpha=alpha, others=alpha)
        ahead = fastest_shape(hoped, self.look.depth, self.look.width)
        forecasts = known.forecasts(hoped, ahead)
        others = [turns.hoped(way) for way in forecasts if way not in LOOKS_AHEAD]
        paces = [one.pace for way in LOOKS_AHEAD if (one := forecasts.get(way)) is not None]
        return max(paces) > max(others)

    def _waits(self) -> bool:
        """Whether several answers do not look ahead until the first has shown what drafts are
        worth: they write alone, or with the draft's help where that is expected to be faster.
        """
        return self.experience.answers > 1 and self._learns()

    def _learns(self) -> bool:
        """Whether the first steps of a run are not drafted yet."""
        return self.experience.probes < FIRST_PROBES

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
