"""Shares of few trials, with confidence intervals."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import sqrt
from typing import Any

Z95 = 1.959963984540054
LEAST_VERDICTS = 5  # minimum number of verdicts for a conclusion


def wilson(successes: int, trials: int) -> tuple[float, float] | None:
    """Wilson's 95 % interval for a share, without SciPy, which takes a second to import."""
    if not trials:
        return None
    share = successes / trials
    square = Z95**2
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    variance = share * (1 - share) / trials + square / (4 * trials**2)
    half = Z95 * sqrt(variance) / (1 + square / trials)
    # exactly, at the ends
    return (middle - half if share > 0 else 0.0), (middle + half if share < 1 else 1.0)


@dataclass(frozen=True)
class FalseAccepts:
    """A judge's verdicts on pairs of steps that differ: ``asked`` pairs, of which it ``accepted``
    some.

    Attributes:
        surely: maximum of the interval's lower bounds after each verdict, from the fifth on
            (docs/verifiers.md).
    """

    accepted: int = 0
    asked: int = 0
    surely: float = 0.0

    def plus(self, accepted: bool) -> FalseAccepts:
        """A copy with one more verdict."""
        found = FalseAccepts(self.accepted + accepted, self.asked + 1, self.surely)
        low, _ = found.interval
        return (
            found if found.asked < LEAST_VERDICTS else replace(found, surely=max(low, self.surely))
        )

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share of accepted pairs."""
        return wilson(self.accepted, self.asked) or (0.0, 1.0)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "interval": list(self.interval)}
