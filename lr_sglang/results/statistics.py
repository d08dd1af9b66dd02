"""Estimates with 95 % intervals over questions, with all samples of each.

Questions are resampled (SciPy's BCa bootstrap), because the samples of one question resemble each
other and a few long answers may make most of a sum. Shares of one answer a question get Wilson's
interval. ``docs/reports.md`` has the reasons and the measured coverage.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import stdev
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lr_sglang.theory.shares import wilson

Floats = NDArray[np.float64]
Ends = tuple[float | None, float | None]
AccuracyVerdict = Literal["kept", "worse", "open"]

RESAMPLES = 2000
LEAST_QUESTIONS = 8  # fewer questions give too few different resamples for an interval
CELLS = 2_000_000  # numbers of a resampled column in memory at a time
MARGIN = 0.02  # the loss of accuracy that still counts as kept


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval; ``low`` and ``high`` are None below ``LEAST_QUESTIONS``
    questions.

    ``samples`` counts answers, pairs or judged steps; ``questions`` is the number of questions that
    they belong to.
    """

    value: float
    low: float | None
    high: float | None
    samples: int
    questions: int

    def holds(self, value: float) -> bool:
        """Whether the interval contains a value."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high


@dataclass(frozen=True)
class Difference(Estimate):
    """Accuracy of one group less that of another, on the same questions and samples, in shares of
    1.

    ``verdict`` is ``kept`` if all of the interval is above ``-MARGIN``, ``worse`` if all of it is
    below, else ``open``.
    """

    verdict: AccuracyVerdict


def _resampled(columns: Floats, statistic: Callable[..., Any]) -> Ends:
    """The ends of the interval of a statistic of columns, whose rows (questions) are resampled
    together; None below ``LEAST_QUESTIONS`` questions.

    The percentiles of the resamples stand in where BCa is undefined, as it is if all questions are
    alike.
    """
    questions = columns.shape[1]
    if questions < LEAST_QUESTIONS:
        return None, None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            tuple(columns),
            statistic,
            paired=True,
            vectorized=True,
            n_resamples=RESAMPLES,
            batch=max(1, CELLS // questions),
            confidence_level=_level(questions),
            rng=0,
        )
    ends = [float(end) for end in found.confidence_interval]
    if not all(map(isfinite, ends)):
        drawn = found.bootstrap_distribution
        ends = np.quantile(drawn[np.isfinite(drawn)], [0.025, 0.975]).tolist()
    return ends[0], ends[1]


def _level(questions: int) -> float:
    """The nominal level at which the interval of few questions is about as wide as a 95 % one
    should be (the expanded percentiles of Hesterberg, 2015)."""
    errors = sqrt(questions / (questions - 1)) * stats.t.ppf(0.975, questions - 1)
    return float(1 - 2 * stats.norm.sf(errors))


def _ratio(above: Floats, below: Floats, axis: int = -1) -> Any:
    return above.sum(axis) / below.sum(axis)


def _estimate(value: float, ends: Ends, samples: int, questions: int) -> Estimate:
    low, high = ends
    if low is None or high is None:
        return Estimate(value, None, None, samples, questions)
    return Estimate(value, min(low, value), max(high, value), samples, questions)


def share_estimate(counts: Mapping[Hashable, tuple[float, float]]) -> Estimate | None:
    """A share, such as accuracy or alpha.

    Args:
        counts: by question, successes and trials. With one trial per question the interval is
            Wilson's; so it is, with a trial for each question, if all trials had the same result.
    """
    table = np.array([pair for pair in counts.values() if pair[1]], float).T
    if table.size == 0:
        return None
    good, tried = table
    questions = table.shape[1]
    trials = int(tried.sum())
    value = float(_ratio(good, tried))
    if questions >= LEAST_QUESTIONS and ((tried == 1).all() or value in (0.0, 1.0)):
        ends = wilson(round(value * questions), questions) or (None, None)
        return _estimate(value, ends, trials, questions)
    return _estimate(value, _resampled(table, _ratio), trials, questions)


def standard_error(counts: Mapping[Hashable, tuple[float, float]]) -> float | None:
    """Of the mean of the questions' shares; None for fewer than two questions. Arguments as of
    ``share_estimate``.
    """
    shares = [good / tried for good, tried in counts.values() if tried]
    return stdev(shares) / sqrt(len(shares)) if len(shares) > 1 else None


def product(
    columns: Sequence[Sequence[float]], powers: Sequence[int], samples: int
) -> Estimate | None:
    """A product of powers of sums, such as seconds / seconds.

    Args:
        columns: for each factor, the summand of each question; the questions are the same for all
            factors.
        powers: of the factors, in their order.
        samples: of the estimate, which shows it.
    """
    table = np.array(columns, float)
    if table.size == 0 or (table.sum(axis=1) <= 0).any():
        return None

    def statistic(*factors: Floats, axis: int = -1) -> Any:
        logs = (
            power * np.log(factor.sum(axis)) for power, factor in zip(powers, factors, strict=True)
        )
        return np.exp(sum(logs))

    value = float(statistic(*table))
    return _estimate(value, _resampled(table, statistic), samples, table.shape[1])


def difference(pairs: Mapping[Hashable, Sequence[float]]) -> Difference | None:
    """The paired difference.

    For the interval, two questions are added, with a pair each that differs, in opposite directions
    (Bonett and Price, 2012, for one sample): otherwise, if no pair differs, the interval would have
    no width.

    Args:
        pairs: by question, for each pair 1 (only the first is right), -1 (only the other is) or 0.
    """
    kept = [list(of) for of in pairs.values() if len(of)]
    if not kept:
        return None
    samples = sum(map(len, kept))
    questions = len(kept)
    value = sum(map(sum, kept)) / samples
    if questions < LEAST_QUESTIONS:
        return Difference(value, None, None, samples, questions, "open")
    each = samples / questions
    table = np.array([[*map(sum, kept), 1.0, -1.0], [*map(len, kept), each, each]])
    found = _estimate(value, _resampled(table, _ratio), samples, questions)
    low = found.low or 0.0
    high = found.high or 0.0
    verdict: AccuracyVerdict = "kept" if low > -MARGIN else "worse" if high < -MARGIN else "open"
    return Difference(value, found.low, found.high, samples, questions, verdict)
