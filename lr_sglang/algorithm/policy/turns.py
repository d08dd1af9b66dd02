"""Ways to write steps in turns, for all answers of a run: the fastest gets the longest turns."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

# The target alone; looking ahead, where each step is written, or is read first.
TurnWay = Literal["alone", "written", "read"]
# Steps of each answer in a trial of looking ahead by one answer.
TRIAL_STEPS = 5.0
# The same in a trial of several answers, or of the target alone, whose steps differ less.
SHORT_TRIAL = 3.0
# Steps before the target alone is tried first, if looking ahead is faster than its expected pace;
# and where that is hardly known.
ALONE_AFTER = 16.0
ALONE_SOON = 6.0
# The weight of the forecast in the pace of looking ahead, in measured steps.
FORECAST_WEIGHT = 8.0
# The target alone is not tried while looking ahead has at least this many times its expected pace,
# and that is known well.
SURE_GAIN = 1.5
# A turn ends where another way is so many times as fast.
MUCH_FASTER = 1.1
# The share of the time that trials may cost.
TRIAL_COST = 0.01
# The minimum and maximum number of steps in a turn of the fastest way.
SHORTEST_TURN = 24.0
LONGEST_TURN = 512.0
# After the first trial of the slower way a turn has at most so many steps (of up to MANY_ANSWERS so
# many times as many), after each further one twice as many: a trial may be unlucky.
PAUSE_AFTER_TRIAL = 40.0
MANY_ANSWERS = 4
# What a trial is added to weighs at most so many times as much.
OLD_WEIGHT = 3.0
# Effective number of steps in a pace; the weight of older ones decays exponentially.
PACE_MEMORY = 64.0


@dataclass
class Pace:
    """A mean pace in tokens per second of one answer; 0 before the first step."""

    tokens: float = 0.0
    seconds: float = 0.0
    steps: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        """Adds a step."""
        fade = 1 - 1 / PACE_MEMORY
        self.tokens = self.tokens * fade + tokens
        self.seconds = self.seconds * fade + seconds
        self.steps = self.steps * fade + 1

    def forget(self, most: float) -> None:
        """Leaves the weight of at most so many steps."""
        share = min(1.0, most / self.steps) if self.steps else 1.0
        self.tokens *= share
        self.seconds *= share
        self.steps *= share

    @property
    def value(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(eq=False)
class Turns:
    """Alternates between the ways to write steps, and measures each, because forecasts omit some
    costs.

    Attributes:
        way: of this turn.
        number: the number of this turn.
        left: steps of each answer until the turn ends.
        paces: of each way that was measured.
    """

    way: TurnWay = "written"
    number: int = 0
    left: float = TRIAL_STEPS
    paces: dict[TurnWay, Pace] = field(default_factory=dict)
    _trial: bool = True
    _foreseen: bool = False
    _steps: float = 0.0
    _mixed: Pace = field(default_factory=Pace)  # of this turn
    _tried: dict[TurnWay, int] = field(default_factory=dict)  # the number of each way's last turn
    _trials: dict[TurnWay, int] = field(default_factory=dict)  # of each way

    @property
    def ahead(self) -> bool:
        """Whether answers look ahead in this turn."""
        return self.way != "alone"

    def pace(self, way: TurnWay) -> float:
        """Tokens per second of an answer in this way; 0 if it was not measured."""
        return self.paces[way].value if way in self.paces else 0.0

    def prefer(self, way: TurnWay) -> None:
        """Begins with this way of looking ahead, where none was measured yet."""
        if not self.paces and self.ahead:
            self.way = way

    def add(
        self,
        tokens: int,
        seconds: float,
        answers: int,
        expected: float,
        gain: float,
        sure: bool = True,
        *,
        of: tuple[TurnWay, int] | None = None,
        mixed: bool = False,
        ways: Collection[TurnWay] = ("alone", "written"),
    ) -> None:
        """Adds a step, and begins another turn where this one has ended.

        Args:
            answers: number of concurrent answers.
            expected: tokens per second of an answer by the target alone, as far as is known without
                a trial.
            gain: the forecast speed-up of looking ahead by writing over ``expected``; 0 if there is
                no forecast yet.
            sure: whether ``expected`` is known well.
            of: the way and the number of the turn in which it began; None if that is this turn. A
                slow step may end in a later one.
            mixed: whether requests of another way were in flight when it began: it counts only
                where nothing else tells what a way takes.
            ways: that are used and tried.
        """
        way, number = of or (self.way, self.number)
        if gain and way == "written" and not self._foreseen:
            self._foreseen = True
            foreseen = FORECAST_WEIGHT * tokens
            self._measured(way).add(foreseen, foreseen / (expected * gain))
        if mixed:
            self._mixed.add(tokens, seconds)
        else:
            self._measured(way).add(tokens, seconds)
        if number == self.number:
            self.left -= (0.5 if mixed else 1.0) / answers
            if self.left <= 0 and self.way not in self.paces:
                self.paces[self.way] = self._mixed
        self._steps += 1 / answers
        if not self.paces:
            return
        best = max((one for one in self.paces if one in ways), key=self.pace, default=self.way)
        slow = not self._trial and self.pace(best) >= MUCH_FASTER * self.pace(self.way)
        if self.left > 0 and self.way in ways and not slow:
            return
        untried = [one for one in ways if one not in self.paces and self._due(one, expected, sure)]
        if untried:
            self._begin(untried[0], answers, trial=True)
        elif self._trial or best != self.way:
            self._begin(best, answers)
        else:
            others = [one for one in ways if one in self.paces and one != best]
            oldest = min(others, key=lambda one: self._tried.get(one, -1), default=best)
            self._begin(oldest, answers, trial=oldest != best)

    def _measured(self, way: TurnWay) -> Pace:
        return self.paces.setdefault(way, Pace())

    def _due(self, way: TurnWay, expected: float, sure: bool) -> bool:
        """Whether a way that was not tried is tried now."""
        if way != "alone":
            return True
        later = SURE_GAIN if sure else math.inf
        enough = later if self._steps >= (ALONE_AFTER if sure else ALONE_SOON) else 1.0
        return max(map(self.pace, self.paces), default=0.0) < enough * expected

    def _begin(self, way: TurnWay, answers: int, trial: bool = False) -> None:
        self.number += way != self.way
        self.way = way
        self._trial = trial
        self._tried[way] = self.number
        self._mixed = Pace()
        length = TRIAL_STEPS if answers == 1 and self.ahead else SHORT_TRIAL
        others = [one for one in self.paces if one != way]
        if trial:
            self._trials[way] = self._trials.get(way, 0) + 1
            if way in self.paces:
                self.paces[way].forget(OLD_WEIGHT * length * answers)
        if trial or not others:
            self.left = length
            return
        slower = min(others, key=self.pace)
        pause = length * (self.pace(way) / max(self.pace(slower), 1e-9) - 1) / TRIAL_COST
        trials = min(17, self._trials.get(slower, 1))
        known = PAUSE_AFTER_TRIAL * min(answers, MANY_ANSWERS) * 2 ** (trials - 1)
        self.left = max(SHORTEST_TURN, min(LONGEST_TURN, pause, known))
