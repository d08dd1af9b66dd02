"""How far to look ahead: limits on requests in flight, the choice of branches, and statistics from
verdicts.

``docs/policies.md`` describes the purpose and the measured effect of each option.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lr_sglang.algorithm.policy.adaptive import Adaptive
from lr_sglang.algorithm.policy.confidence import Calibration, confidence
from lr_sglang.algorithm.policy.experience import RunStatistics
from lr_sglang.algorithm.policy.fixed import Policy
from lr_sglang.algorithm.policy.forecast import SPARE, in_flight, limit, running_requests
from lr_sglang.config import Lookahead
from lr_sglang.steps.tree import StepTree

__all__ = [
    "SPARE",
    "Adaptive",
    "Calibration",
    "Policy",
    "RunStatistics",
    "confidence",
    "in_flight",
    "limit",
    "make",
    "running_requests",
]


def make(
    look: Lookahead,
    tree: StepTree,
    experience: RunStatistics,
    clock: Callable[[], float] = time.monotonic,
) -> Policy:
    """The policy of one answer.

    Args:
        experience: statistics shared by the answers of a run.
    """
    return (Adaptive if look.policy == "adaptive" else Policy)(look, tree, experience, clock)
