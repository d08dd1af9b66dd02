"""The fixed policy, which is the default: the window's depth and width, and the gate where one is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from lr_sglang.algorithm.policy.experience import Mean, RunStatistics, Share
from lr_sglang.algorithm.policy.room import priority
from lr_sglang.config import Lookahead
from lr_sglang.steps.tree import Branch, Node, StepTree

# So many verdicts on drafts with a confidence before anything is held back.
LEARNS = 16
# A draft costs less than a branch of the target, and where it is there already the gate can open without delay.
DRAFTS = 0.25


class Policy:
    """Says of one answer's tree what is should_expand a branch, and is told what came of it.

    The gate holds back what is not likely enough to be needed: the draft's confidence in each step on the way, as
    calibrated against the verdicts so far.

    Args:
        look: the most that may be done.
        experience: what all answers of the run have learnt.
        clock: seconds.
    """

    def __init__(
        self, look: Lookahead, tree: StepTree, experience: RunStatistics, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.look, self.tree, self.experience, self.clock = look, tree, experience, clock
        self.own = Share()
        self._began: dict[Branch, float] = {}
        self._seconds = Mean()

    def __enter__(self) -> Policy:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def is_static(self) -> bool:
        """Whether it is known beforehand how the draft goes on: in one version, as far as the window is open."""
        look = self.look
        return look.width == 1 and not (look.gate or look.hedge or look.priorities)

    def width(self, node: Node) -> int:
        """In how many versions the draft may write the step after ``node``; 0 is not now."""
        return self.look.width if self._likely(node, DRAFTS * self.look.gate) else 0

    def should_expand(self, node: Node) -> bool:
        """Whether the target may write the step after ``node`` now. Always so at the root: asked again and again."""
        return self._likely(node, self.look.gate)

    def _likely(self, node: Node, enough: float) -> bool:
        if not self.look.gate or node is self.tree.root or self.experience.calibration.samples < LEARNS:
            return True
        chance = self.chance(node)
        # what could still be saved by waiting, against what the wait would cost if the branch is needed after all
        return chance * self._wait(node) * (1 - enough) >= (1 - chance) * enough

    def _wait(self, node: Node) -> float:
        """How long it takes until more is known of the least certain step on the way, in target steps, at most 1."""
        before = min(self._undecided(node), key=lambda pair: self._step(pair[1]), default=None)
        if before is None or not self._seconds.value:
            return 1.0
        began = self._began.get(before[0].expanding) if before[0].expanding else None
        if began is None:
            return 0.0 if before[0].target is not None else 1.0
        left = self._seconds.value + self.experience.verdict.value - (self.clock() - began)
        return min(1.0, max(0.0, left / self._seconds.value))

    def _undecided(self, node: Node) -> Iterator[tuple[Node, Node]]:
        for before in self.tree.between(node):
            if before.chosen is None:
                yield before, node
            node = before

    def chance(self, node: Node) -> float:
        """That the answer comes this way, as far as it is not decided."""
        return math.prod(self._step(after) for _, after in self._undecided(node))

    def _step(self, node: Node) -> float:
        """That this prefix is chosen after the one before it."""
        assert node.parent is not None
        if node is node.parent.correction:
            refused = 1.0
            for child in node.parent.children:
                refused *= 1 - self._accepted(child)
            return refused
        return self._accepted(node)

    def _accepted(self, child: Node) -> float:
        if child.verdict is not None:
            return float(child.verdict.accepted)
        if child.confidence is not None and self.experience.calibration.samples >= LEARNS:
            return self.experience.calibration.chance(child.confidence)
        return self.experience.alpha(self.own)

    def priority(self, node: Node) -> int | None:
        """Of what is asked after ``node``; None leaves the order to the runtime."""
        return priority(self.tree, node) if self.look.priorities else None

    def decided(self, node: Node) -> None:
        """The step after ``node`` is kept."""
        self.experience.decided(node, self.own)

    def begun(self, branch: Branch) -> None:
        """A branch begins."""
        if branch.role == "target" and self.look.gate:
            self._began[branch] = self.clock()

    def ended(self, branch: Branch, tokens: int = 0) -> None:
        """It has ended, with so many tokens; none where it was cancelled or failed."""
        began = self._began.pop(branch, None)
        if began is not None and tokens:
            self._seconds.add(self.clock() - began)
