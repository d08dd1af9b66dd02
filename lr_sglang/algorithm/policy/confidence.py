"""The calibration of the draft's confidence in its steps against verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Sample = tuple[float, bool]
PRECISION = 1e-6  # of the curve: its level and its slope per standard deviation


@dataclass(frozen=True)
class Calibration:
    """The probability that a drafted step is accepted: a logistic curve over its confidence.

    Attributes:
        centre: the mean confidence; ``level`` is the log-odds there, ``slope`` their change per
            unit of confidence.
        samples: number of verdicts that it was fitted to.
    """

    level: float = 0.0
    slope: float = 0.0
    centre: float = 0.0
    samples: int = 0

    def chance(self, confidence: float) -> float:
        """The probability that a step of this confidence is accepted."""
        return float(_chances(self.level + self.slope * (confidence - self.centre)))

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> Calibration:
        """The most likely curve, with a weak Gaussian prior around 0 on the slope."""
        if not samples:
            return cls()
        xs, ys = np.array(samples, float).T
        centre = xs.mean()
        scale = xs.std() if np.ptp(xs) else 1.0
        # one acceptance and one rejection at the mean confidence keep the curve finite
        points = np.append((xs - centre) / scale, [0.0, 0.0])
        ys = np.append(ys, [0.0, 1.0])

        def loss(at: NDArray[np.float64]) -> float:
            """The negative log-likelihood, which is convex."""
            odds = at[0] + at[1] * points
            return float(np.logaddexp(0.0, odds).sum() - ys @ odds + at[1] ** 2 / 2)

        at = np.zeros(2)
        step = np.ones(2)
        # Newton's method; half a step where one goes too far
        while np.abs(step).max() > PRECISION:
            chances = _chances(at[0] + at[1] * points)
            weights = chances * (1 - chances)
            across = weights @ points
            gradient = [(chances - ys).sum(), (chances - ys) @ points + at[1]]
            curvature = [[weights.sum(), across], [across, weights @ points**2 + 1]]
            step = np.linalg.solve(curvature, gradient)
            while loss(at - step) > loss(at):
                step = step / 2
            at = at - step
        level, slope = at
        return cls(float(level), float(slope / scale), float(centre), len(samples))


def _chances(odds: Any) -> Any:
    """Probabilities from log-odds."""
    return (1 + np.tanh(odds / 2)) / 2
