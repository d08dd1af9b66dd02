"""The calibration of the draft's confidence in its steps against verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Sample = tuple[float, bool]


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
        from scipy.optimize import minimize  # half of the time in which a launch begins

        if not samples:
            return cls()
        xs, ys = np.array(samples, float).T
        centre = xs.mean()
        scale = xs.std() if np.ptp(xs) else 1.0
        # one acceptance and one rejection at the mean confidence keep the curve finite
        points = np.append((xs - centre) / scale, [0.0, 0.0])
        ys = np.append(ys, [0.0, 1.0])

        def loss(at: Any) -> tuple[float, Any]:
            """The negative log-likelihood, and its gradient."""
            slope = at[1]
            odds = at[0] + slope * points
            off = _chances(odds) - ys
            loss = np.logaddexp(0.0, odds).sum() - ys @ odds + slope * slope / 2
            return loss, np.array([off.sum(), off @ points + slope])

        level, slope = minimize(loss, np.zeros(2), jac=True).x
        return cls(float(level), float(slope / scale), float(centre), len(samples))


def _chances(odds: Any) -> Any:
    """Probabilities from log-odds."""
    return (1 + np.tanh(odds / 2)) / 2
