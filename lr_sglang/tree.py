"""The step tree: which steps were drafted, written by the target, judged and decided. Plain data, no I/O.

A node is a prefix of the answer. ``node.step`` led to it; ``node.target`` is the target's own version of the step
*after* it; ``node.children`` are the drafted versions of that step. Once all of them are judged the node is decided:
its ``chosen`` child is an accepted draft, or a new node made of the target's version. The root moves along chosen
nodes, and each one it passes is a step of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from lr_sglang.speculation import Speculation
from lr_sglang.steps import Step, same_ending


class Outcome(StrEnum):
    """What became of a branch."""

    ACCEPTED = "accepted"  # a draft step that was kept, or a target step that agreed with it
    REJECTED = "rejected"  # a draft step that the verifier refused, or that came too late
    CORRECTED = "corrected"  # a target step used in place of rejected drafts
    BONUS = "bonus"  # a target step used where nothing was drafted
    CANCELLED = "cancelled"  # nobody needed it any more


@dataclass(frozen=True)
class Verdict:
    """Whether two versions of a step agree: who decided, and why.

    Attributes:
        score: what the verifier measured, where it is a number (a cosine, a rating, a log-probability).
        earlier: the verdicts of a cascade's stages before the one that decided.
    """

    accepted: bool
    by: str
    reason: str = ""
    seconds: float = 0.0
    failed: bool = False
    score: float | None = None
    earlier: tuple[Verdict, ...] = ()


@dataclass(frozen=True)
class Pair:
    """Two versions of one step after the same prefix (s_j and d_j of the paper)."""

    target: Step
    draft: Step
    prefix_complete: bool = True


@dataclass(eq=False)
class Branch:
    """One generation asked of a runtime, from its start to its outcome. Times are seconds since the run began."""

    role: str
    position: int
    alternative: int = 0
    seed: int = 0
    started: float = 0.0
    ended: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    shared_tokens: int | None = None
    generated_tokens: int = 0
    speculation: Speculation = field(default_factory=Speculation)
    outcome: Outcome | None = None
    error: str = ""
    call: Any = field(default=None, repr=False)
    entry: Any = field(default=None, repr=False)

    def close(self, outcome: Outcome) -> None:
        """Gives the branch its outcome; it gets one, once."""
        assert self.outcome is None, f"{self.role} branch at {self.position} is {self.outcome} already"
        self.outcome = outcome


@dataclass(eq=False)
class Node:
    """A prefix of the answer.

    Attributes:
        used: the answer's tokens up to here.
        corrections, lineage: the target's steps on the way, and which alternatives the drafted ones were; with the
            position they tell nodes apart that may be there at the same time: no two of them draw with the same seed.
        weighed: the inquiry whether the drafted step is certain (fast acceptance), ``doubted`` that it is not.
    """

    parent: Node | None
    position: int
    step: Step | None = None
    source: Literal["prompt", "draft", "target"] = "prompt"
    alternative: int = 0
    used: int = 0
    corrections: int = 0
    lineage: int = 0
    state: Any = field(default=None, repr=False)
    drafting: Branch | None = None
    expanding: Branch | None = None
    target: Step | None = None
    target_state: Any = field(default=None, repr=False)
    children: list[Node] = field(default_factory=list)
    proposed: bool = False
    asked: Any = field(default=None, repr=False)
    weighed: Any = field(default=None, repr=False)
    doubted: bool = False
    verdict: Verdict | None = None
    chosen: Node | None = None
    dropped: bool = False

    @property
    def cut(self) -> bool:
        """The prefix ends in the middle of a step, at the token cap."""
        return self.step is not None and not self.step.complete

    def subtree(self) -> Iterator[Node]:
        """This node and everything under it."""
        yield self
        for child in self.children:
            yield from child.subtree()
        if self.chosen is not None and self.chosen not in self.children:
            yield from self.chosen.subtree()


@dataclass
class StepTree:
    """The tree of one answer, and the rules that decide it (paper section 3.1, Algorithm 1 and multi-branch).

    Args:
        depth: how many drafted steps there may be ahead of the root.
        width: drafted alternatives per position.
        budget: tokens that the answer may have.
        half_sentence_guard: a step after a cut prefix is never accepted, so nothing is drafted there.
        fast: a drafted step may be accepted without the target's version of it.
    """

    depth: int
    width: int
    budget: int
    half_sentence_guard: bool = True
    fast: bool = False
    root: Node = field(default_factory=lambda: Node(None, 0))

    def ahead(self, node: Node) -> int:
        """How many steps the node is ahead of the root."""
        return node.position - self.root.position

    def room(self, node: Node) -> int:
        """Tokens left in the budget after the node."""
        return self.budget - node.used

    def ends(self, node: Node) -> bool:
        """Whether the answer is over at this node."""
        return (node.step is not None and node.step.final) or self.room(node) <= 0

    def live(self) -> Iterator[Node]:
        """Nodes whose prefix is known and still possible, the root first."""
        return (n for n in self.root.subtree() if not n.dropped and (n.step is not None or n is self.root))

    def to_expand(self, depth: int) -> list[Node]:
        """Nodes at most ``depth`` ahead, after which the target has not been asked for the next step, nearest first."""
        found = [
            n
            for n in self.live()
            if n.expanding is None and self.ahead(n) <= depth and not self.ends(n) and not self._may_do_without(n)
        ]
        return sorted(found, key=self.ahead)

    def _may_do_without(self, node: Node) -> bool:
        """Whether the target's version is not needed after ``node``, or may turn out not to be.

        It is not waited for at the root: a draft that hangs there must not hold the answer up.
        """
        if node.chosen is not None:
            return True
        return self.fast and node is not self.root and any(not c.verdict and not c.doubted for c in node.children)

    def to_weigh(self, child: Node) -> bool:
        """Whether a drafted step may be accepted without the target's version, if it turns out to be certain.

        Not one that was cut, or that follows one; nor one that ends the thinking.
        """
        if not self.fast or child.step is None or child.verdict or child.weighed or child.asked:
            return False
        guarded = child.parent is None or (child.parent.cut and self.half_sentence_guard)
        child.doubted = guarded or not child.step.complete or child.step.closes_thinking
        return not child.doubted

    def to_propose(self) -> list[Node]:
        """Nodes less than ``depth`` ahead, after which nothing has been drafted, nearest first."""
        found = [
            n
            for n in self.live()
            if not n.proposed
            and n.target is None
            and self.ahead(n) < self.depth
            and not self.ends(n)
            and not (n.cut and self.half_sentence_guard)
        ]
        return sorted(found, key=self.ahead)

    def propose(self, node: Node) -> list[Node]:
        """Adds ``width`` children, whose steps are to be drafted."""
        node.proposed = True
        node.children = [
            Node(node, node.position + 1, source="draft", alternative=i, corrections=node.corrections)
            for i in range(self.width)
        ]
        for child in node.children:
            child.lineage = node.lineage * self.width + child.alternative
        return node.children

    def drafted(self, node: Node, step: Step) -> None:
        """The draft step that leads to ``node`` is there."""
        assert node.parent is not None
        node.step, node.used = step, node.parent.used + len(step.ids)

    def pair(self, child: Node) -> Pair | None:
        """The two versions that a verdict on ``child`` compares, if both are there and it has none."""
        parent = child.parent
        if parent is None or parent.target is None or child.step is None or child.verdict or child.asked:
            return None
        return Pair(parent.target, child.step, not (parent.cut and self.half_sentence_guard))

    def decide(self, node: Node) -> Node | None:
        """Chooses the node's next step once it is clear; returns it when this call chose it.

        An accepted draft is chosen as soon as there is one. When every draft is rejected (or there is none) the
        target's own version is. Nothing is decided without that, but for fast acceptance.
        """
        if node.chosen is not None or (node.target is None and not self.fast):
            return None
        accepted = [c for c in node.children if c.verdict and c.verdict.accepted]
        if accepted:
            node.chosen = accepted[0]
        elif node.target is not None and all(c.verdict for c in node.children):
            used = node.used + len(node.target.ids)
            node.chosen = Node(node, node.position + 1, node.target, "target", used=used, state=node.target_state)
            node.chosen.corrections, node.chosen.lineage = node.corrections + 1, node.lineage * self.width
        return node.chosen

    def advance(self) -> Node | None:
        """Moves the root one decided step on and returns it, or None when the next step is not decided."""
        if self.root.chosen is None:
            return None
        self.root = self.root.chosen
        return self.root


def without_a_judge(pair: Pair) -> Verdict | None:
    """What is clear before any verifier is asked: a cut prefix or different endings are never accepted."""
    if not pair.prefix_complete:
        return Verdict(False, "guard", "the prefix ends in the middle of a step")
    if not same_ending(pair.target, pair.draft):
        return Verdict(False, "ending", "the versions end differently")
    return None
