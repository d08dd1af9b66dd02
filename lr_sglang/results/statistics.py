"""Estimates with 95 % intervals over questions, with all samples of each.

Shares get Wilson's interval, whose width is not zero at 0 and 1; ratios of sums are resampled,
because a few long answers may make most of them. ``docs/reports.md`` has the reasons and the
measured coverage.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lr_sglang.theory.shares import wilson, wilson_of

Floats = NDArray[np.float64]
Verdict = Literal["kept", "worse", "open"]

RESAMPLES = 2000
# Fewer questions than this give too few different resamples to studentise; the t interval stands
# in.
LEAST_BOOTSTRAP = 8
# The t interval also stands in if more than a tenth of the resamples have a smaller part of the
# error than this: then one question makes most of it, and resamples without that question have no
# spread to divide by.
LEAST_SPREAD, MAX_WITHOUT = 0.1, 0.1
MARGIN = 0.02


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval; ``low`` and ``high`` are None if there is one question only.

    ``samples`` counts answers, pairs or judged steps; ``questions`` is the number of questions that
    they belong to.
    """

    value: float
    low: float | None
    high: float | None
    samples: int
    questions: int

    def scaled(self, factor: float) -> Estimate:
        """The estimate of ``factor`` times the value."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return replace(self, value=factor * self.value, low=low, high=high)

    def holds(self, value: float) -> bool:
        """Whether the interval contains a value."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high


@dataclass(frozen=True)
class Difference(Estimate):
    """Accuracy of one group less that of another, on the same questions and samples, in shares of
    1.

    ``verdict`` is ``kept`` if all of the interval is above -margin, ``worse`` if all of it is
    below, else ``open``.
    """

    margin: float
    verdict: Verdict


def _t(questions: int) -> float:
    return float(stats.t.ppf(0.975, questions - 1))


def _error(sums: Floats, sizes: Floats) -> float:
    """The standard error of a ratio of sums over questions, linearised."""
    n, value = len(sums), sums.sum() / sizes.sum()
    return sqrt(float(((sums - value * sizes) ** 2).sum()) * n / (n - 1)) / float(sizes.sum())


def _estimate(value: float, low: float, high: float, samples: int, questions: int) -> Estimate:
    return Estimate(value, min(low, value), max(high, value), samples, questions)


def share(counts: Mapping[Hashable, tuple[float, float]]) -> Estimate | None:
    """A share, such as accuracy or alpha.

    Args:
        counts: by question, successes and trials. With one trial per question the interval is
            Wilson's own; else it is Wilson's for the number of independent trials that would have
            the same standard error.
    """
    kept = [(s, t) for s, t in counts.values() if t]
    if not kept:
        return None
    good, tried = (np.array(column, float) for column in zip(*kept, strict=True))
    questions, trials = len(kept), int(tried.sum())
    value = float(good.sum() / tried.sum())
    if (tried == 1).all():
        low, high = wilson(int(good.sum()), trials) or (value, value)
    elif questions < 2:
        return Estimate(value, None, None, trials, questions)
    else:
        error = _error(good, tried)
        worth = min(trials, value * (1 - value) / error**2) if error else trials
        # If all trials had the same result, each question counts as one trial.
        low, high = wilson_of(value, questions if value in (0.0, 1.0) else worth, _t(questions))
    return _estimate(value, low, high, trials, questions)


@lru_cache(maxsize=8)
def _weights(questions: int, seed: int = 0) -> Floats:
    """How often each question is in each resample. The same for every figure of a report, and from
    run to run.
    """
    drawn = np.random.default_rng(seed).multinomial(
        questions, np.full(questions, 1 / questions), size=RESAMPLES
    )
    return drawn.astype(float)


def product(
    columns: Sequence[Sequence[float]], powers: Sequence[int], samples: int
) -> Estimate | None:
    """A product of powers of sums, such as seconds / seconds: the studentised bootstrap of its
    logarithm.

    Args:
        columns: for each factor, the summand of each question; the questions are the same for all
            factors.
        powers: of the factors, in their order.
        samples: of the estimate, which shows it.
    """
    table = np.array(columns, float)
    if table.size == 0 or (table.sum(axis=1) <= 0).any():
        return None
    signs, questions = np.array(powers, float), table.shape[1]
    sums = table.sum(axis=1)
    middle = float(signs @ np.log(sums))
    if questions < 2:
        return Estimate(exp(middle), None, None, samples, questions)
    # The influence of each question on the logarithm: the sum of power * its share of the factor's
    # sum.
    influence = (signs[:, None] * table / sums[:, None]).sum(axis=0) - signs.sum() / questions
    spread = sqrt(float((influence**2).sum()) * questions / (questions - 1))
    down = up = _t(questions)
    if questions >= LEAST_BOOTSTRAP and spread > 0:
        down, up = _studentised(table, signs, middle, spread) or (down, up)
    return _estimate(
        exp(middle), exp(middle - down * spread), exp(middle + up * spread), samples, questions
    )


def _studentised(
    table: Floats, signs: Floats, middle: float, spread: float
) -> tuple[float, float] | None:
    """The interval's ends in standard errors below and above the value; None if the resamples do
    not suffice.
    """
    weights = _weights(table.shape[1])
    sums = weights @ table.T
    usable = (sums > 0).all(axis=1)
    sums, weights = sums[usable], weights[usable]
    parts = sum(
        sign * column / sums[:, [k]]
        for k, (sign, column) in enumerate(zip(signs, table, strict=True))
    )
    errors = np.sqrt((weights * (parts - signs.sum() / table.shape[1]) ** 2).sum(axis=1))
    sound = errors > LEAST_SPREAD * spread
    if sound.mean() < 1 - MAX_WITHOUT:
        return None
    low, high = np.quantile((np.log(sums[sound]) @ signs - middle) / errors[sound], [0.025, 0.975])
    return float(high), float(-low)


def difference(
    pairs: Mapping[Hashable, Sequence[float]], margin: float = MARGIN
) -> Difference | None:
    """The paired difference, with Student's t interval over questions.

    For the interval, two questions are added, with a pair each that differs, in opposite directions
    (Bonett and Price, 2012, for one sample): otherwise, if no pair differs, the interval would have
    no width.

    Args:
        pairs: by question, for each pair 1 (only the first is right), -1 (only the other is) or 0.
    """
    kept = [list(of) for of in pairs.values() if len(of)]
    if not kept:
        return None
    samples, questions = sum(map(len, kept)), len(kept)
    value = sum(map(sum, kept)) / samples
    if questions < 2:
        return Difference(value, None, None, samples, questions, margin, "open")
    n, each = questions + 2, samples / questions
    sums, sizes = np.array([*map(sum, kept), 1.0, -1.0]), np.array([*map(len, kept), each, each])
    middle, width = sums.sum() / sizes.sum(), _t(n) * _error(sums, sizes)
    low, high = np.clip((middle - width, middle + width), -1, 1).tolist()
    verdict: Verdict = "kept" if low > -margin else "worse" if high < -margin else "open"
    return Difference(value, min(low, value), max(high, value), samples, questions, margin, verdict)


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """The geometric mean of speed-ups, which is the same for a ratio and its inverse."""
    logs = [log(ratio) for ratio in ratios if ratio > 0]
    return exp(sum(logs) / len(logs)) if logs else None
