"""How far to look ahead: what an answer may have in flight, which branches are worth it, and what is learnt of it.

``docs/policies.md`` says what each option is for, and what it was measured to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lr_sglang.algorithm.policy.adaptive import Adaptive
from lr_sglang.algorithm.policy.confidence import Calibration, confidence, pairs_of
from lr_sglang.algorithm.policy.experience import RunStatistics
from lr_sglang.algorithm.policy.fixed import Policy
from lr_sglang.algorithm.policy.room import SPARE, fits, in_flight, limit, running_requests
from lr_sglang.config import Lookahead
from lr_sglang.steps.tree import StepTree

__all__ = [
    "SPARE",
    "Adaptive",
    "Calibration",
    "Policy",
    "RunStatistics",
    "confidence",
    "experience_for",
    "fits",
    "in_flight",
    "limit",
    "make",
    "pairs_of",
    "running_requests",
]


def experience_for(look: Lookahead) -> RunStatistics:
    """What the answers of a run begin with: nothing, or what an earlier run has calibrated.

    Raises:
        ConfigError: there is no such calibration.
    """
    return RunStatistics(calibration=Calibration.read(look.calibration)) if look.calibration else RunStatistics()


def make(
    look: Lookahead, tree: StepTree, experience: RunStatistics, clock: Callable[[], float] = time.monotonic
) -> Policy:
    """The policy of one answer.

    Args:
        experience: what the answers of a run learn together.
    """
    return (Adaptive if look.policy == "adaptive" else Policy)(look, tree, experience, clock)
