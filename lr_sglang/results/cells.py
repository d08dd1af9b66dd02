"""Figures as they stand in the cells of a table."""

from __future__ import annotations

from lr_sglang.results.measures import Measures
from lr_sglang.results.statistics import Estimate

NONE = "-"


def spanned(estimate: Estimate | None, digits: int, scale: float = 1.0, unit: str = "") -> str:
    """A value with its interval, if it has one."""
    if estimate is None:
        return NONE
    value = f"{scale * estimate.value:.{digits}f}{unit}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} ({scale * estimate.low:.{digits}f}..{scale * estimate.high:.{digits}f})"


def percent(estimate: Estimate | None) -> str:
    """A share."""
    return spanned(estimate, 1, 100)


def points(estimate: Estimate | None) -> str:
    """A difference of shares, with its sign."""
    if estimate is None:
        return NONE
    said = f"{100 * estimate.value:+.1f}"
    if estimate.low is None or estimate.high is None:
        return said
    return f"{said} ({100 * estimate.low:+.1f}..{100 * estimate.high:+.1f})"


def times(estimate: Estimate | None) -> str:
    """A speed-up."""
    return spanned(estimate, 2, unit="x")


def number(value: Estimate | float | None, digits: int, scale: float = 1.0) -> str:
    """A value without its interval."""
    value = value.value if isinstance(value, Estimate) else value
    return NONE if value is None else f"{scale * value:.{digits}f}"


def plus_minus(m: Measures) -> str:
    """Accuracy as the paper gives it."""
    if m.accuracy is None:
        return NONE
    spread = f"+-{100 * m.spread:.1f}" if m.spread is not None else ""
    return f"{100 * m.accuracy.value:.1f}{spread}"
