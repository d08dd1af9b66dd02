"""The draft's confidence in a step (mean log-probability), and its calibration against verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# ``Verdict.by`` of steps that were not compared: the draft came too late, failed, or followed a cut
# step.
NO_COMPARISON = ("late", "draft", "guard")
_ROUNDS = 25
Sample = tuple[float, bool]


def confidence(meta: Mapping[str, Any], tokens: int) -> float | None:
    """The mean log-probability of a step's tokens, from a reply's meta_info; None if it
    has none.
    """
    try:
        found = [float(entry[0]) for entry in meta["output_token_logprobs"][:tokens]]
    except (KeyError, TypeError, ValueError, IndexError):
        return None
    return sum(found) / len(found) if found and all(map(math.isfinite, found)) else None


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
        return _logistic(self.level + self.slope * (confidence - self.centre))

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> Calibration:
        """Fits by Newton's method, with a weak Gaussian prior around 0 on the slope."""
        if not samples:
            return cls()
        xs = [x for x, _ in samples]
        centre = sum(xs) / len(xs)
        scale = math.sqrt(sum((x - centre) ** 2 for x in xs) / len(xs)) or 1.0
        points = [((x - centre) / scale, float(accepted)) for x, accepted in samples]
        level = slope = 0.0
        for _ in range(_ROUNDS):
            # one acceptance and one rejection at the mean confidence keep the curve finite
            g0 = g1 = h01 = 0.0
            h00, h11 = 1e-9, 1.0
            for x, y in (*points, (0.0, 0.5), (0.0, 0.5)):
                p = _logistic(level + slope * x)
                weight = p * (1 - p)
                g0, g1 = g0 + y - p, g1 + (y - p) * x
                h00, h01, h11 = h00 + weight, h01 + weight * x, h11 + weight * x * x
            g1 -= slope
            size = h00 * h11 - h01 * h01
            up, tilt = (h11 * g0 - h01 * g1) / size, (h00 * g1 - h01 * g0) / size
            level, slope = level + max(-2.0, min(2.0, up)), slope + max(-2.0, min(2.0, tilt))
            if abs(up) + abs(tilt) < 1e-6:
                break
        return cls(level, slope / scale, centre, len(samples))


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -500 else 0.0
