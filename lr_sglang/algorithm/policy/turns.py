"""Looking ahead and the target alone in turns, over all answers of a run: the faster one gets longer turns."""

from __future__ import annotations

from dataclasses import dataclass, field

# Steps of each answer that a trial of the other way takes; and those before the first one, where looking ahead gives
# more than is expected of the target alone.
TRIAL, FIRST = 3.0, 16.0
# The weight of the forecast for looking ahead, in measured steps.
FORECAST = 8.0
# The share of the time that trials may cost; the least and the most steps in a turn of the better way.
COST, SHORTEST, LONGEST = 0.01, 24.0, 256.0
# No trial of the target alone where looking ahead gives this many times what is expected of it.
SURE = 1.5
# Steps that count; older ones fade exponentially.
MEMORY = 64.0


@dataclass
class Pace:
    """Tokens of an answer per second of it; 0 is not known."""

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
    """Alternates between looking ahead and the target alone, and measures both: a forecast leaves costs out.

    Attributes:
        ahead: whether answers look ahead in this turn.
        number: of the turn.
        left: steps of each answer that are left of the turn.
    """

    ahead: bool = True
    number: int = 0
    _trial: bool = False
    _foreseen: bool = False
    left: float = TRIAL
    _steps: float = 0.0
    _ahead: Pace = field(default_factory=Pace)
    _alone: Pace = field(default_factory=Pace)

    def add(self, tokens: int, seconds: float, answers: int, expected: float, gain: float) -> None:
        """Adds a step that began and ended in this turn.

        Args:
            answers: number of concurrent answers.
            expected: tokens per second of an answer that the target writes alone, by the measurements of its branches.
            gain: how many times that looking ahead gives, by the forecast; 0 is not known yet.
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
            enough = SURE if self._steps >= FIRST else 1.0
            self._begin(self._ahead.value >= enough * expected, trial=True)

    def _begin(self, ahead: bool, trial: bool = False) -> None:
        trial = trial and ahead is not self.ahead
        self.number += ahead is not self.ahead
        self.ahead, self._trial = ahead, trial
        low, high = sorted((self._ahead.value, self._alone.value))
        pause = min(LONGEST, max(SHORTEST, TRIAL * (high / low - 1) / COST)) if low else TRIAL
        self.left = TRIAL if trial else pause
