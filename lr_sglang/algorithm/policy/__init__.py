"""How far to look ahead: limits on requests in flight, the choice of branches, and statistics from
verdicts.

``docs/policies.md`` describes the purpose and the measured effect of each option.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lr_sglang.algorithm.policy.adaptive import Adaptive
from lr_sglang.algorithm.policy.confidence import Calibration
from lr_sglang.algorithm.policy.experience import RunStatistics
from lr_sglang.algorithm.policy.fixed import Policy
from lr_sglang.algorithm.policy.forecast import SPARE_SLOTS, in_flight, running_requests, slot_limit
from lr_sglang.config import Lookahead
from lr_sglang.steps.tree import StepTree

__all__ = [
    "SPARE_SLOTS",
    "Adaptive",
    "Calibration",
    "Policy",
    "RunStatistics",
    "in_flight",
    "make_policy",
    "running_requests",
    "slot_limit",
]


def make_policy(
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
