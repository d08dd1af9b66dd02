"""Seconds per token of a runtime as a linear function of its concurrent requests. No
I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from lr_sglang.algorithm.policy.forecast import StepTimes, rounded, without_prefills
from lr_sglang.engine.probes import Costs

# Prior: each further request slows the others by 1 %, because a GPU is bandwidth-bound for small
# batches.
SLOWDOWN = 0.01
# It has the weight of one measurement so many requests away from the mean; and if a slowdown was
# measured at start.
PRIOR_DISTANCE = 2.0
MEASURED_DISTANCE = 20.0
# Effective number of measurements; the weight of older ones decays exponentially.
LOAD_MEMORY = 2000.0
# Tokens of one measurement: a branch counts by its tokens, for that of a few is mostly waiting.
TOKENS = 20.0
NO_COSTS = Costs(0.0, 0.0)


@dataclass
class Load:
    """Fitted to branches as they begin and end: seconds per token = base + more x (concurrent
    requests).

    Attributes:
        costs: the costs measured at start; None if they were not measured.
        running: concurrent requests of this process.
    """

    costs: Costs | None = None
    running: int = 0
    _now: float = 0.0
    _area: float = 0.0  # requests x seconds
    _weight: float = 0.0
    _n: float = 0.0
    _y: float = 0.0
    _nn: float = 0.0
    _ny: float = 0.0

    def begin(self, now: float) -> tuple[float, float]:
        """Counts a request that begins; returns the mark that ``end`` needs."""
        self._pass(now)
        self.running += 1
        return self._now, self._area

    def end(
        self,
        now: float,
        mark: tuple[float, float],
        tokens: int = 0,
        alone: int = 0,
        answers: int = 1,
    ) -> None:
        """Counts a request that has ended; its duration is used only if ``tokens`` is not 0.

        Args:
            alone: number of concurrent requests that write several steps; each of the others
                prefills a drafted step.
            answers: number of concurrent answers.
        """
        self._pass(now)
        self.running -= 1
        seconds = self._now - mark[0]
        if tokens and seconds > 0:
            requests = (self._area - mark[1]) / seconds
            costs = self.costs or NO_COSTS
            prefilling = max(0.0, requests - alone)
            prefills = prefilling * (costs.prefill or costs.token)
            busy = without_prefills(seconds, prefills, answers)
            busy = max(seconds / 4, busy - prefilling * costs.reading * tokens)
            self._learn(requests, busy / tokens, tokens / TOKENS)

    @property
    def known(self) -> bool:
        """Whether there is any measurement."""
        return self._weight > 0

    def line(self) -> tuple[float, float]:
        """Seconds per token: ``base``, and ``more`` per concurrent request; from the costs before
        the first branch.
        """
        if not self.known and self.costs:
            base = self.costs.token * (1 - self.costs.slowdown)
            return base, self.costs.token * self.costs.slowdown
        more = self._more()
        return self._y - more * self._n, more

    def runtime(self, tokens: float) -> StepTimes | None:
        """Seconds of a step of this many tokens, rounded so that small changes alter no choice;
        None if unknown.
        """
        if not (self.known or self.costs):
            return None
        costs = self.costs or NO_COSTS
        prefill = costs.prefill or costs.token
        parts = (*(tokens * part for part in (*self.line(), costs.reading)), prefill)
        return StepTimes(*map(rounded, parts))

    def seconds_per_token(self, requests: int) -> float:
        """With so many concurrent requests."""
        base, more = self.line()
        return base + more * max(1, requests)

    def _more(self) -> float:
        slowdown = self.costs.slowdown if self.costs else SLOWDOWN
        guess = slowdown * self._y / (1 + slowdown * max(0.0, self._n - 1))
        trust = (MEASURED_DISTANCE if self.costs else PRIOR_DISTANCE) ** 2
        more = (self._ny + trust * guess) / (self._nn + trust)
        # at best a larger batch takes no longer, at worst the runtime serves its requests one after
        # another
        return min(max(0.0, more), self._y / max(1.0, self._n))

    def _pass(self, now: float) -> None:
        if now > self._now:
            self._area += self.running * (now - self._now)
            self._now = now

    def _learn(self, requests: float, per_token: float, weight: float) -> None:
        fade = max(0.0, 1 - weight / LOAD_MEMORY)
        self._weight = self._weight * fade + weight
        aside = requests - self._n
        apart = per_token - self._y
        self._n += aside * weight / self._weight
        self._y += apart * weight / self._weight
        # West's update of the fading sums about the means
        self._nn = self._nn * fade + weight * aside * (requests - self._n)
        self._ny = self._ny * fade + weight * aside * (per_token - self._y)
