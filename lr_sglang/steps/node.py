"""What a step tree is made of: branches, versions, verdicts and nodes. Plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from lr_sglang.steps.speculation import Speculation
from lr_sglang.steps.step import Step


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
    """One generation asked of a runtime, from its start to its outcome. Times are seconds since the run began.

    ``hedged`` says that it is of use only if a verdict that is awaited is a refusal. ``queued`` and ``prefill`` are the
    seconds that it waited in the runtime and that its prompt took there, where the runtime says so.
    """

    role: str
    position: int
    alternative: int = 0
    seed: int = 0
    started: float = 0.0
    ended: float | None = None
    hedged: bool = False
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    shared_tokens: int | None = None
    generated_tokens: int = 0
    speculation: Speculation = field(default_factory=Speculation)
    queued: float | None = None
    prefill: float | None = None
    outcome: Outcome | None = None
    error: str = ""
    request: Any = field(default=None, repr=False)
    entry: Any = field(default=None, repr=False)

    def close(self, outcome: Outcome) -> None:
        """Gives the branch its outcome; it gets one, once."""
        assert self.outcome is None, f"{self.role} branch at {self.position} is {self.outcome} already"
        self.outcome = outcome


@dataclass(eq=False)
class Node:
    """A prefix of the answer.

    Attributes:
        tokens_used: the answer's tokens up to here.
        lineage: which alternatives the steps on the way were, the target's among them; with the position it tells
            nodes apart that may be there at the same time: no two of them draw with the same seed.
        confidence: how sure the draft was of the step, where it was asked.
        correction: the prefix that the target's version of the next step leads to, where it is needed or may be.
        number: among the nodes of the answer, for who watches it being made (see ``events``).
        fast_checked: the inquiry whether the drafted step is certain (fast acceptance).
        fast_rejected: it is not certain.
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
    fast_checked: Any = field(default=None, repr=False)
    fast_rejected: bool = False
    verdict: Verdict | None = None
    chosen: Node | None = None
    dropped: bool = False
    number: int | None = None

    @property
    def cut(self) -> bool:
        """The prefix ends in the middle of a step, at the token cap."""
        return self.step is not None and not self.step.complete

    def let_go(self) -> None:
        """Forgets what refers back to it, and would keep it until a garbage collection: its parent, its inquiries."""
        self.parent = self.asked = self.fast_checked = None

    def subtree(self) -> Iterator[Node]:
        """This node and everything under it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            if node.correction is not None:
                waiting.append(node.correction)
            waiting += reversed(node.children)
