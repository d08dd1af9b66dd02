"""Looking ahead and the target alone in turns, for all answers of a run: the faster way gets the
longer turns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# Steps of each answer in a trial of the other way; and steps before the first trial, if looking
# ahead is faster than the expected pace of the target alone. Where steps are read, that pace is
# hardly known, and the trial comes soon.
TRIAL, FIRST, SOON = 3.0, 16.0, 6.0
# The weight of the forecast in the pace of looking ahead, in measured steps.
FORECAST = 8.0
# The target alone is not tried while looking ahead has at least this many times its expected pace,
# and steps are written.
SURE = 1.5
# The share of the time that trials may cost; the minimum and maximum number of steps in a turn of
# the faster way.
COST, SHORTEST, LONGEST = 0.01, 24.0, 256.0
# Effective number of steps in a pace; the weight of older ones decays exponentially.
MEMORY = 64.0


@dataclass
class Pace:
    """A mean pace in tokens per second of one answer; 0 before the first step."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Adds a step."""
        fade = 1 - 1 / MEMORY
        self.tokens, self.seconds = self.tokens * fade + tokens, self.seconds * fade + seconds

    @property
    def value(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(eq=False)
class Turns:
    """Alternates between looking ahead and the target alone, and measures both, because forecasts
    omit some costs.

    Attributes:
        ahead: whether answers look ahead in this turn.
        number: the number of this turn.
        left: steps of each answer until the turn ends.
    """

    ahead: bool = True
    number: int = 0
    _trial: bool = False
    _foreseen: bool = False
    left: float = TRIAL
    _steps: float = 0.0
    _ahead: Pace = field(default_factory=Pace)
    _alone: Pace = field(default_factory=Pace)

    def add(
        self,
        tokens: int,
        seconds: float,
        answers: int,
        expected: float,
        gain: float,
        written: bool = True,
    ) -> None:
        """Adds a step that began and ended in this turn.

        Args:
            answers: number of concurrent answers.
            expected: tokens per second of an answer by the target alone, computed from the times of
                its branches.
            gain: the forecast speed-up of looking ahead over ``expected``; 0 if there is no
                forecast yet.
            written: whether the target writes its versions of all steps, and reads none first.
        """
        if gain and not self._foreseen:
            self._foreseen = True
            self._ahead.tokens += FORECAST * tokens
            self._ahead.seconds += FORECAST * tokens / (expected * gain)
        (self._ahead if self.ahead else self._alone).add(tokens, seconds)
        self.left -= 1 / answers
        self._steps += 1 / answers
        if self.left > 0:
            return
        better = self._ahead.value >= self._alone.value
        if self._alone.value and (self._trial or better is not self.ahead):
            self._begin(better)
        elif not self.ahead:
            self._begin(True, trial=True)
        else:
            later = SURE if written else math.inf
            enough = later if self._steps >= (FIRST if written else SOON) else 1.0
            self._begin(self._ahead.value >= enough * expected, trial=True)

    def _begin(self, ahead: bool, trial: bool = False) -> None:
        trial = trial and ahead is not self.ahead
        self.number += ahead is not self.ahead
        self.ahead, self._trial = ahead, trial
        low, high = sorted((self._ahead.value, self._alone.value))
        pause = min(LONGEST, max(SHORTEST, TRIAL * (high / low - 1) / COST)) if low else TRIAL
        self.left = TRIAL if trial else pause
