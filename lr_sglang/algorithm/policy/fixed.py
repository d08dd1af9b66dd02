"""The fixed policy, which is the default: constant depth and width, and the gate if ``gate`` is
set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from lr_sglang.algorithm.policy.experience import RunStatistics
from lr_sglang.algorithm.policy.forecast import furthest
from lr_sglang.algorithm.policy.turns import Way
from lr_sglang.config import Lookahead
from lr_sglang.steps.branch import Branch
from lr_sglang.steps.tree import Node, StepTree

# The gate opens for every branch until the calibration has this number of verdicts.
GATE_SAMPLES = 16
# The gate's threshold for drafts, as a share of that for target branches: a draft costs less, and a
# target branch can begin at once if its draft is there.
DRAFT_GATE = 0.25


class Policy:
    """Decides which nodes of one answer's tree get branches, and learns from the verdicts.

    The gate delays a branch that is unlikely to be needed. The probability that it is needed is the
    product, over the undecided steps before it, of their acceptance probabilities: the draft's
    confidence, calibrated by past verdicts.

    Args:
        look: the settings; depth and width are upper limits.
        experience: statistics shared by all answers of the run.
        clock: returns seconds.
    """

    def __init__(
        self,
        look: Lookahead,
        tree: StepTree,
        experience: RunStatistics,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.look = look
        self.tree = tree
        self.experience = experience
        self.clock = clock
        self._accepted = 0  # of the first drafted versions of this answer's steps
        self._judged = 0
        self._began: dict[Branch, float] = {}

    def __enter__(self) -> Policy:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def width(self, node: Node) -> int:
        """How many versions of the step after ``node`` may be drafted now; 0 to wait."""
        return self.look.width if self._likely(node, DRAFT_GATE * self.look.gate) else 0

    @property
    def furthest(self) -> int:
        """How many steps ahead of the answer the target may write."""
        return furthest(self.look.schedule, self.look.depth)

    def should_expand(self, node: Node) -> bool:
        """Whether the target may write the step after ``node`` now; always True at the root. Called
        repeatedly.
        """
        return self._likely(node, self.look.gate)

    def _likely(self, node: Node, enough: float) -> bool:
        if (
            not self.look.gate
            or node is self.tree.root
            or self.experience.calibration.samples < GATE_SAMPLES
        ):
            return True
        chance = self.chance(node)
        # start when the expected time lost by waiting is at least the expected work that waiting
        # would save
        return chance * self._wait(node) * (1 - enough) >= (1 - chance) * enough

    def _wait(self, node: Node) -> float:
        """Time until the verdict on the least certain step before ``node``, in target steps, at
        most 1.
        """
        before = min(self._undecided(node), key=lambda pair: self._step(pair[1]), default=None)
        seconds = self.experience.step.value
        if before is None or not seconds:
            return 1.0
        version = before[0].version
        began = self._began.get(version.branch) if version.branch else None
        if began is None:
            return 0.0 if version.step is not None else 1.0
        left = seconds + self.experience.verdict.value - (self.clock() - began)
        return min(1.0, max(0.0, left / seconds))

    def _undecided(self, node: Node) -> Iterator[tuple[Node, Node]]:
        for before in self.tree.between(node):
            if before.chosen is None:
                yield before, node
            node = before

    def chance(self, node: Node) -> float:
        """The probability that ``node`` becomes part of the answer."""
        return math.prod(self._step(after) for _, after in self._undecided(node))

    def _step(self, node: Node) -> float:
        """The probability that ``node`` is chosen, given that its parent is."""
        if node.verdict is not None:
            return float(node.verdict.accepted)
        if node.confidence is not None and self.experience.calibration.samples >= GATE_SAMPLES:
            return self.experience.calibration.chance(node.confidence)
        return self.alpha()

    def alpha(self) -> float:
        """Expected acceptance of the first drafted version of a step of this answer."""
        return self.experience.alpha(self._accepted, self._judged)

    @property
    def way(self) -> Way | None:
        """In which the next steps are written; None where that is decided step by step."""
        return None

    def tokens_alone(self) -> int:
        """Tokens that the target may write in one generation now, because looking ahead does not
        pay; 0 is none.
        """
        return 0

    def learn(self, node: Node) -> None:
        """Learns from the verdicts on the step after ``node``, which has been kept."""
        accepted = self.experience.learn(node)
        self._judged += accepted is not None
        self._accepted += accepted is True

    def begun(self, branch: Branch) -> None:
        """Called when a branch begins."""
        if branch.role == "target" and self.look.gate:
            self._began[branch] = self.clock()

    def ended(self, branch: Branch, tokens: int = 0) -> None:
        """Called when a branch has ended; ``tokens`` is 0 where it was cancelled or failed."""
        began = self._began.pop(branch, None)
        if began is not None and tokens:
            self.experience.step.add(self.clock() - began)
