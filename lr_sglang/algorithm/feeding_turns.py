"""Whether a request of the target is fed: in turns with a line and without one."""

from __future__ import annotations

from lr_sglang.algorithm.answer_context import AnswerContext
from lr_sglang.algorithm.policy.turns import Forecast, TurnWay

# Passes may be so many times as fast while no draft is written.
FREED = 1.25


class FeedingTurns:
    """Times the steps of one fed request, for all answers of the run, and says whether the draft is
    to write ahead: without a line each pass gives one token, and may be faster.

    Attributes:
        passes: of the target since steps were kept last.
    """

    def __init__(self, context: AnswerContext) -> None:
        self._context = context
        self._experience = context.request.experience
        self._experience.fed += 1
        self._turns, self._pace = self._experience.feeding()
        self._choose_way()
        self._turn = self._turns.number
        self._since = context.branches.now()
        self._timed = 0  # tokens, and steps, whose time is known
        self._timed_steps = len(context.trace.steps)
        self.passes = 0

    @property
    def feeds(self) -> bool:
        """Whether the draft writes ahead now; of an answer that is not exact its policy decides."""
        return not self._context.request.exact or self._turns.way == "fed"

    def steps_kept(self, kept: int) -> None:
        """Learns how fast the steps came that are in the answer since the last call.

        Args:
            kept: the request's tokens that are in steps.
        """
        steps = len(self._context.trace.steps) - self._timed_steps
        if not steps:
            return
        now = self._context.branches.now()
        seconds = now - self._since
        # what came first has waited for the prefill
        if self._timed and seconds > 0 and self._turn == self._turns.number:
            self._learn(kept - self._timed, steps, seconds)
        self._timed = kept
        self._timed_steps += steps
        self._turn = self._turns.number
        self._since = now
        self.passes = 0

    def _learn(self, tokens: int, steps: int, seconds: float) -> None:
        """Learns how long some steps took."""
        way: TurnWay = "fed" if self.feeds else "alone"
        if way == "fed":
            self._pace.add(self.passes, seconds)
        answers = max(1, self._experience.fed)
        self._turns.add(way, self._turns.number, tokens, seconds, answers=answers, steps=steps)
        self._choose_way()

    def _choose_way(self) -> None:
        """Goes on with the faster way, or tries the other: without a line each pass would give one
        token, and may be faster.
        """
        expected = FREED * max(self._pace.value, self._experience.measured_pace())
        alone = Forecast(expected) if expected else None
        answers = max(1, self._experience.fed)
        self._turns.choose({"fed": None, "alone": alone}, answers=answers)

    def close(self) -> None:
        """Ends with the request."""
        self._experience.fed -= 1
