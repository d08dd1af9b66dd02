"""Ways to write steps in turns, for all answers of a run: what each gives is measured, and each
turn goes to the way that may be the fastest.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

# ``alone``: the target writes several steps in one generation. ``fed``: so, and verifies in each
# pass what the draft has written ahead of it. ``portions``: it reads what the draft writes, portion
# by portion. Looking ahead, it has its version after each prefix of the tree: ``written``, or
# ``read`` first.
Way = Literal["alone", "fed", "portions", "written", "read"]
# Steps in a way's first turn, of one answer, or of each of several; each further turn that follows
# at once is twice as long, up to LONGEST.
TURN = 5.0
SHORT_TURN = 3.0
LONGEST = 24.0
# A turn goes on at its end where no other way may be so many times as fast: answers change their
# way one after another, and are slow meanwhile. It ends before where one may be so much faster.
FASTER = 1.05
MUCH_FASTER = 1.4
# A way may be so many standard errors faster than it was measured: none at first, because a trial
# costs a short run more than it gains, and so many after that many steps of each answer. Where the
# target has the draft's help, no branch is dropped, and a trial costs little: so many at once.
HOPE = 1.0
HOPE_STEPS = 40.0
HELPED: frozenset[Way] = frozenset({"fed", "portions"})
LOOKS_AHEAD: tuple[Way, ...] = ("written", "read")
# The standard error of a forecast, as a share of it; of the forecast of reading whole steps, of
# being fed, which does not know how much slower the target is beside the draft; and of what was
# measured at start.
UNSURE = 0.15
UNSURE_READ = 0.25
UNSURE_FED = 0.35
MEASURED = 0.1
# The scatter of a step's tokens about what its time lets expect, as a share of them, and in how
# many steps it is assumed to have shown.
SCATTER = 1.0
ASSUMED = 4.0
# Effective number of steps of each answer in a pace; the weight of older ones decays.
MEMORY = 160.0
# The last changes that are remembered: a step may have begun before them.
MOST_SPANS = 32


class Forecast(NamedTuple):
    """A pace in tokens per second of one answer that was not measured in turns, and its standard
    error as a share of it.
    """

    pace: float
    error: float = UNSURE


@dataclass
class Pace:
    """A mean pace in tokens per second of one answer, or in what else is added (``feeding`` counts
    passes); 0 before the first step.
    """

    tokens: float = 0.0
    seconds: float = 0.0
    steps: float = 0.0
    _tokens_squared: float = 0.0
    _tokens_seconds: float = 0.0
    _seconds_squared: float = 0.0

    def add(self, tokens: float, seconds: float, steps: float = 1.0, weight: float = 1.0) -> None:
        """Adds some steps that came together."""
        self.tokens += weight * tokens
        self.seconds += weight * seconds
        self.steps += weight * steps
        self._tokens_squared += weight * tokens * tokens
        self._tokens_seconds += weight * tokens * seconds
        self._seconds_squared += weight * seconds * seconds

    def fade(self, share: float) -> None:
        """Leaves this share of the weight."""
        self.tokens *= share
        self.seconds *= share
        self.steps *= share
        self._tokens_squared *= share
        self._tokens_seconds *= share
        self._seconds_squared *= share

    @property
    def value(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def error(self) -> float:
        """The standard error of ``value``, by the scatter of what was added."""
        if not self.seconds:
            return math.inf
        pace = self.value
        scatter = self._tokens_squared - 2 * pace * self._tokens_seconds
        scatter = max(0.0, scatter + pace * pace * self._seconds_squared)
        scatter += ASSUMED * (SCATTER * self.tokens / self.steps) ** 2
        return math.sqrt(scatter * self.steps / (self.steps + ASSUMED)) / self.seconds


class Span(NamedTuple):
    """A time from which all that is written counts for one turn.

    Attributes:
        weight: how much it says of the turn's way.
    """

    began: float
    way: Way
    number: int
    weight: float


@dataclass(eq=False)
class Turns:
    """Writes steps in turns of several ways, and measures each.

    Attributes:
        way: of this turn.
        number: of changes of the way so far.
        left: steps of each answer until the turn ends.
        paces: of each way that was measured.
        nearest: the turns with another number of answers, by which forecasts are corrected: each
            way may be so much faster or slower than its forecast as it was there.
    """

    way: Way = "alone"
    number: int = 0
    left: float = 0.0
    paces: dict[Way, Pace] = field(default_factory=dict)
    nearest: Turns | None = None
    _length: float = TURN
    _steps: float = 0.0  # of each answer
    _forecasts: Mapping[Way, Forecast | None] = field(default_factory=dict)
    _spans: deque[Span] = field(default_factory=lambda: deque(maxlen=MOST_SPANS))

    @property
    def ahead(self) -> bool:
        """Whether answers look ahead in this turn."""
        return self.way in LOOKS_AHEAD

    def pace(self, way: Way) -> float:
        """Tokens per second of an answer in this way; 0 if it was not measured."""
        return self.paces[way].value if way in self.paces else 0.0

    def add(
        self,
        way: Way,
        number: int,
        tokens: float,
        seconds: float,
        *,
        answers: int = 1,
        steps: float = 1,
        weight: float = 1.0,
    ) -> None:
        """Adds what an answer has written.

        Args:
            way, number: of the turn in which it began; a slow step may end in a later one.
            answers: number of concurrent answers.
            steps: that came together.
            weight: how much they say of this way.
        """
        self.paces.setdefault(way, Pace()).add(tokens, seconds, steps, weight)
        self._steps += steps / answers
        if number == self.number:
            self.left -= steps / answers

    def note(self, now: float, weight: float) -> None:
        """Notes how much what is written from now on says of this turn's way."""
        span = Span(now, self.way, self.number, weight)
        if not self._spans or self._spans[-1][1:] != span[1:]:
            self._spans.append(span)

    def share(
        self, began: float, ended: float, tokens: int, *, answers: int = 1, steps: int = 1
    ) -> None:
        """Adds what an answer has written in this time to the turns that were then: what one answer
        gains by its way, others may lose, so a pace is that of all answers.
        """
        later = ended
        for span in reversed(self._spans):
            if (seconds := later - max(began, span.began)) > 0:
                part = seconds / (ended - began)
                self.add(
                    span.way,
                    span.number,
                    part * tokens,
                    seconds,
                    answers=answers,
                    steps=part * steps,
                    weight=span.weight,
                )
                later = span.began
            if span.began <= began:
                break

    def choose(self, forecasts: Mapping[Way, Forecast | None], *, answers: int = 1) -> None:
        """Begins the next turn if this one has ended.

        Args:
            forecasts: of the ways that can be used; None where there is no forecast.
            answers: number of concurrent answers.
        """
        self._forecasts = forecasts
        hoped = {way: self.hoped(way) for way in forecasts}
        best = max(hoped, key=hoped.__getitem__)
        if self.left > 0 and hoped.get(self.way, 0.0) * MUCH_FASTER > hoped[best]:
            return
        if self.paces and hoped[best] < FASTER * hoped.get(self.way, 0.0):
            best = self.way
        for one in self.paces.values():
            one.fade(1 - self._length / MEMORY)
        if best == self.way and self.paces:
            self._length = min(LONGEST, 2 * self._length)
        else:
            self._length = TURN if answers == 1 else SHORT_TURN
        self.number += best != self.way
        self.way = best
        self.left = self._length

    @property
    def sure(self) -> bool:
        """Whether no other way may be as fast as this one is."""
        others = (self.hoped(way) for way in self._forecasts if way != self.way)
        return self.hoped(self.way, 0.0) >= max(others, default=0.0)

    def hoped(self, way: Way, errors: float = HOPE) -> float:
        """The pace that a way may have, so many standard errors above its estimate."""
        forecast = self._forecasts.get(way)
        if forecast is not None:
            forecast = forecast._replace(pace=forecast.pace * self._correction(way))
        known = self.estimate(way, forecast)
        if known is None:
            return math.inf
        share = 1.0 if way in HELPED else min(1.0, self._steps / HOPE_STEPS)
        return known.pace * (1 + errors * share * known.error)

    def estimate(self, way: Way, forecast: Forecast | None) -> Forecast | None:
        """The pace of a way by its forecast and what was measured, each with the weight that its
        error gives it; None without both.
        """
        known = [] if forecast is None else [forecast]
        if measured := self.pace(way):
            known.append(Forecast(measured, self.paces[way].error / measured))
        if not known:
            return None
        weights = [1 / max(1e-9, one.pace * one.error) ** 2 for one in known]
        mean = sum(w * one.pace for w, one in zip(weights, known, strict=True)) / sum(weights)
        return Forecast(mean, 1 / math.sqrt(sum(weights)) / max(1e-9, mean))

    def _correction(self, way: Way) -> float:
        """How many times as fast as its forecast a way was with the nearest number of answers."""
        if self.nearest is None or not self.nearest.pace(way):
            return 1.0
        forecast = self.nearest._forecasts.get(way)
        return self.nearest.pace(way) / forecast.pace if forecast and forecast.pace else 1.0
