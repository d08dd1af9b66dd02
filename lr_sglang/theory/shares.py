"""Shares of a few trials, and what they may be in truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt

Z95 = 1.959963984540054
LEAST = 5  # verdicts: fewer say nothing


def wilson(successes: int, trials: int) -> tuple[float, float] | None:
    """Wilson's 95 % interval for a share."""
    return wilson_of(successes / trials, trials, Z95) if trials else None


def wilson_of(share: float, trials: float, z: float) -> tuple[float, float]:
    """Wilson's interval, ``z`` standard errors to both sides; trials need not be whole."""
    square = z**2
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = z * sqrt(share * (1 - share) / trials + square / (4 * trials**2)) / (1 + square / trials)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class FalseAccepts:
    """How many pairs of steps that differ a judge was asked about, and how many it accepted all the same.

    Attributes:
        surely: the share that it surely accepts: the lower end of the 95 % interval where that was highest, after the
            fifth verdict or later. One that accepts 70 % is found out within 20 verdicts in 96 of 100 cases at a limit
            of 0.35, and one that accepts 10 % is wronged in 1 of 2,000.
    """

    accepted: int
    asked: int
    surely: float

    @classmethod
    def of(cls, verdicts: Sequence[bool]) -> FalseAccepts:
        """Of verdicts in order, True for an accepted pair."""
        sums = list(accumulate(map(int, verdicts)))
        lows = [found[0] for n, k in enumerate(sums, 1) if n >= LEAST and (found := wilson(k, n)) is not None]
        return cls(sum(verdicts), len(verdicts), max(lows, default=0.0))
