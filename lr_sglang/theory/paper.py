"""The formulas of arXiv 2506.19830, with the paper's names (sections 2, 3.2 and 3.3, appendices B
and C).

The paper assumes steps of equal cost, independent acceptances, a verifier that takes no time, and
one drafted version per step. ``alpha`` is the acceptance rate of drafted steps (``alpha1``) or
tokens (``alpha2``), in [0, 1]; ``c`` is the time of a drafted step or token over that of the
target's, in [0, 1); ``k`` is the number of steps or tokens that the target processes at once, at
least 1. Speed-ups are over the target alone. A value out of range is a ``ConfigError``.
"""

from __future__ import annotations

import math

from lr_sglang.config import Schedule
from lr_sglang.errors import ConfigError

# Tolerance for the rounding error of 1/c at an integer.
_ROUNDING = 1e-9


def check_in_range(alpha: float, c: float, k: int = 1, layer: str = "1") -> None:
    """Checks that the values are in the range of the formulas.

    Raises:
        ConfigError: names the value, with the paper's index ``layer``.
    """
    within(f"alpha{layer}", alpha, 0 <= alpha <= 1, "in [0, 1]")
    within(f"c{layer}", c, 0 <= c < 1, "in [0, 1): drafting must be faster than the target")
    within(f"k{layer}", k, k >= 1, "at least 1")


def within(name: str, value: float, holds: bool, should: str) -> None:
    """Raises a ``ConfigError`` unless ``holds`` is True."""
    if not holds:
        raise ConfigError(f"{name}: {value:g} is not possible; it must be {should}")


def expected_run(alpha: float, k: int) -> float:
    """Expected steps (or tokens) per cycle: the accepted run, at most ``k - 1``, and the target's
    own after it.

    1 + alpha + ... + alpha^(k-1) = (1 - alpha^k) / (1 - alpha): the numerator of all speed-ups in
    the paper.
    """
    check_in_range(alpha, 0, k)
    if alpha == 1 or alpha == 0:
        return float(k) if alpha else 1.0
    return -math.expm1(k * math.log(alpha)) / (1 - alpha)


def bound(alpha: float) -> float:
    """1 / (1 - alpha): the upper bound of the speed-up for any depth and draft (section 2).
    Infinite for alpha 1.
    """
    check_in_range(alpha, 0)
    return 1 / (1 - alpha) if alpha < 1 else math.inf


def g(alpha2: float, c2: float, k2: int) -> float:
    """Speed-up of token-level speculation, ``k2`` tokens checked at once (section 2; ``k2`` =
    drafted tokens + 1).

    (1 - alpha2^k2) / ((1 - alpha2)(1 - c2 + c2 k2)). Unimodal in k2 (Lemma 3).
    """
    check_in_range(alpha2, c2, k2, "2")
    return f_sync(alpha2, c2, k2)


def f_sync(alpha1: float, c1: float, k1: int) -> float:
    """Theorem 1: speed-up of the sync schedule, ``k1`` target steps at once (``k1`` = depth + 1).

    (1 - alpha1^k1) / ((1 - alpha1)(1 - c1 + c1 k1)). Unimodal in k1; its peak is at 2 or more if
    alpha1 > c1 (Lemma 3).
    """
    check_in_range(alpha1, c1, k1)
    return expected_run(alpha1, k1) / (1 - c1 + c1 * k1)


def whole(ratio: float) -> float:
    """The smallest integer that is not below ``ratio``, or infinity."""
    return ratio if math.isinf(ratio) else float(math.ceil(ratio - _ROUNDING))


def draft_limited(c1: float, k1: int) -> bool:
    """Whether S1 holds in the async schedule, k1 >= ceil(1/c1): the draft cannot keep more target
    steps busy.

    Otherwise S2 holds: the target's width is the limit.
    """
    check_in_range(0, c1, k1)
    return c1 > 0 and k1 >= whole(1 / c1)


def s1(alpha1: float, c1: float) -> float:
    """Theorem 2, first case, for k1 >= ceil(1/c1): async speed-up where the draft is the limit.

    (1 + E[X]) / (1 + c1 E[X]) = 1 / (c1 + (1 - c1)(1 - alpha1)), with X the accepted run,
    geometric.
    """
    check_in_range(alpha1, c1)
    rest = c1 + (1 - c1) * (1 - alpha1)
    return 1 / rest if rest else math.inf


def s2(alpha1: float, c1: float, k1: int) -> float:
    """Theorem 2, second case, for k1 <= 1/c1: async speed-up where the width of the target is the
    limit.

    E[1 + X] / E[ceil((X + 1)/k1) + c1 (X mod k1)]
    = (1 - alpha1^k1) / ((1 - alpha1) + c1 (alpha1 - alpha1^(k1+1) - k1 (1 - alpha1) alpha1^k1)),
    with both divided by 1 - alpha1, so that it is defined for alpha1 = 1.

    Raises:
        ConfigError: also if only the first case holds (at k1 = 1/c1 both hold and agree).
    """
    check_in_range(alpha1, c1, k1)
    most = 1 / c1 if c1 else math.inf
    within("k1", k1, k1 * c1 <= 1 + _ROUNDING, f"at most 1/c1 = {most:g} for S2; S1 holds here")
    run = expected_run(alpha1, k1)
    return run / (1 + c1 * (run - 1 - (k1 - 1) * alpha1**k1))


def f_async(alpha1: float, c1: float, k1: int) -> float:
    """Theorem 2: speed-up of the async schedule with at most ``k1`` target steps at once (``k1`` =
    depth).

    S2 grows with k1 up to ceil(1/c1); from there on the speed-up is S1, which is constant (Lemma
    2).
    """
    check_in_range(alpha1, c1, k1)
    return s1(alpha1, c1) if draft_limited(c1, k1) else s2(alpha1, c1, k1)


def h(
    alpha1: float, c1: float, k1: int, alpha2: float, c2: float, k2: int, schedule: Schedule
) -> float:
    """Speed-up of both layers, f(k1) g(k2) (section 3.3). k1 = 1 is the token layer alone, k2 = 1
    lookahead alone.
    """
    f = f_sync if schedule == "sync" else f_async
    return f(alpha1, c1, k1) * g(alpha2, c2, k2)


def parallel(schedule: Schedule, c1: float, k1: int) -> int:
    """Number of target steps that actually run in parallel: k1, in async at most ceil(1/c1)
    (section 3.3).
    """
    check_in_range(0, c1, k1)
    return k1 if schedule == "sync" or c1 == 0 else int(min(k1, whole(1 / c1)))
