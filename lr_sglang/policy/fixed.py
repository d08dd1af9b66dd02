"""The fixed policy, which is the default: the window's depth and width, and the gate where one is given."""

from __future__ import annotations

from collections.abc import Callable

from lr_sglang.config import Lookahead
from lr_sglang.policy.experience import Experience, Share
from lr_sglang.tree import Branch, Node, StepTree

# So many verdicts on drafts with a confidence before anything is held back.
LEARNS = 16


class Policy:
    """Says of one answer's tree what is worth a branch, and is told what came of it.

    The gate holds back what is not likely enough to be needed: the draft's confidence in each step on the way, as
    calibrated against the verdicts so far.

    Args:
        look: the most that may be done.
        experience: what all answers of the run have learnt.
        clock: seconds.
    """

    def __init__(
        self, look: Lookahead, tree: StepTree, experience: Experience, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.look, self.tree, self.experience, self.clock = look, tree, experience, clock
        self.own = Share()

    def __enter__(self) -> Policy:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def width(self, node: Node) -> int:
        """In how many versions the draft may write the step after ``node``; 0 is not now."""
        return self.look.width if self.worth(node) else 0

    def worth(self, node: Node) -> bool:
        """Whether the target may write the step after ``node`` now. Always so at the root: asked again and again."""
        if not self.look.gate or node is self.tree.root or self.experience.calibration.samples < LEARNS:
            return True
        return self.chance(node) >= self.look.gate

    def chance(self, node: Node) -> float:
        """That the answer comes this way, as far as it is not decided."""
        found = 1.0
        for before in self.tree.between(node):
            if before.chosen is None:
                found *= self._step(node)
            node = before
        return found

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

    def decided(self, node: Node) -> None:
        """The step after ``node`` is kept."""
        self.experience.decided(node, self.own)

    def begun(self, branch: Branch) -> None:
        """A branch begins."""

    def ended(self, branch: Branch, tokens: int = 0) -> None:
        """It has ended, with so many tokens; none where it was cancelled or failed."""
