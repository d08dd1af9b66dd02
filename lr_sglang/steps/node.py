"""The parts of a step tree: versions, verdicts and nodes. Plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from lr_sglang.steps.step import Step

if TYPE_CHECKING:
    from lr_sglang.engine.branch import Branch


class Outcome(StrEnum):
    """The outcome of a branch."""

    ACCEPTED = (
        "accepted"  # a draft step that was kept, or the target step that it was compared with
    )
    REJECTED = "rejected"  # a draft step that the verifier rejected, or that came too late
    CORRECTED = "corrected"  # a target step used in place of rejected drafts
    BONUS = "bonus"  # a target step used where there was no draft
    CANCELLED = "cancelled"  # the branch was no longer needed


@dataclass(frozen=True)
class Verdict:
    """Whether two versions of a step agree, who decided it, and why.

    Attributes:
        score: the number that the verifier measured, if any (a cosine, a rating, a
            log-probability).
        earlier: the verdicts of a cascade's stages before the one that decided.
    """

    accepted: bool
    by: str
    reason: str = ""
    score: float | None = None
    seconds: float = 0.0
    failed: bool = False
    earlier: tuple[Verdict, ...] = ()

    def __post_init__(self) -> None:  # numbers of numpy or torch cannot be written to a record
        if self.accepted is None or not hasattr(self.accepted, "__bool__"):
            raise TypeError(f"a verdict is true or false, not {self.accepted!r}")
        score = self.score if isinstance(self.score, float | int | None) else float(self.score)
        self.__dict__.update(
            accepted=bool(self.accepted), score=score, by=str(self.by), reason=str(self.reason)
        )


@dataclass(frozen=True)
class Pair:
    """Two versions of one step after the same prefix (s_j and d_j of the paper)."""

    target: Step
    draft: Step
    prefix_complete: bool = True


@dataclass(eq=False)
class Node:
    """A prefix of the answer.

    Attributes:
        tokens_used: number of tokens of this prefix of the answer.
        lineage: a number for the versions of the steps before it. Together with the position it is
            unique among the nodes of a tree, so that no two of them draw with the same seed.
        confidence: the draft's mean log-probability of the step; None if it was not requested.
        correction: the node after this one whose step is the target's version; None until it is
            needed.
        reads: whether the drafted step after it is read by the target before it is written.
        begun: the first tokens of the target's version of that step, known from reading; None if
            nothing was read.
        guess: drafted tokens after those, which the target has not read yet; None if there are
            none. ``guessing`` is the branch that wrote them, unless they are the drafted step.
        since: when its next step could begin, in seconds of the policy's clock.
        number: the node's number in events (see ``events``).
    """

    parent: Node | None
    position: int
    step: Step | None = None
    source: Literal["prompt", "draft", "target"] = "prompt"
    alternative: int = 0
    tokens_used: int = 0
    lineage: int = 0
    state: Any = field(default=None, repr=False)
    drafting: Branch | None = None
    expanding: Branch | None = None
    confidence: float | None = None
    target: Step | None = None
    target_state: Any = field(default=None, repr=False)
    children: list[Node] = field(default_factory=list)
    correction: Node | None = field(default=None, repr=False)
    proposed: bool = False
    asked: Any = field(default=None, repr=False)
    verdict: Verdict | None = None
    chosen: Node | None = None
    dropped: bool = False
    reads: bool = False
    begun: tuple[int, ...] | None = None
    guess: tuple[int, ...] | None = None
    guessing: Branch | None = None
    since: float = 0.0
    number: int | None = None

    @property
    def cut(self) -> bool:
        """Whether the prefix ends in the middle of a step, at the token cap."""
        return self.step is not None and not self.step.complete

    def release(self) -> None:
        """Removes references to its parent and inquiries, so that no reference cycle keeps them in
        memory.
        """
        self.parent = self.asked = None

    def subtree(self) -> Iterator[Node]:
        """This node and everything under it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            if node.correction is not None:
                waiting.append(node.correction)
            waiting += reversed(node.children)
