"""One generation of an answer, from its request to its outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lr_sglang.engine.generation import Generation, waits
from lr_sglang.engine.request import Request
from lr_sglang.errors import Cancelled, LookaheadError
from lr_sglang.steps.tree import Node, Outcome

# SGLang's counts of its speculative decoding: verifications, drafted and accepted tokens.
SD = ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts")


@dataclass(eq=False)
class Branch(Request):
    """A request for a step, or of a verifier, and what became of it. Times are seconds since the
    answer began.

    Attributes:
        node: the prefix that it goes on from; child: the drafted node that it writes, or judges;
            None where the target writes. They, ``state`` and ``result`` are None once the answer
            has entered the result.
        state: the program's state that generates.
        so_far: tokens generated so far, where the answer shows them while they are generated.
        ended: when its result came; None before.
        sd: counts of its token layer, as of ``trace.acceptance``.
        shareable: gives ``shared_tokens``, once all earlier branches have ended.
        queued, prefill: seconds in the runtime's queue and in its prefill; None if it does not
            report them.
    """

    role: str
    position: int
    alternative: int = 0
    seed: int | None = 0
    key: str = ""
    order: int = 0
    place: int = 0
    started: float = 0.0
    ended: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    shared_tokens: int | None = None
    generated_tokens: int = 0
    sd: tuple[int, ...] = (0, 0, 0)
    queued: float | None = None
    prefill: float | None = None
    outcome: Outcome | None = None
    error: str = ""
    shareable: Callable[[], int] | None = field(default=None, repr=False)
    node: Node | None = field(default=None, repr=False)
    child: Node | None = field(default=None, repr=False)
    state: Any = field(default=None, repr=False)
    so_far: tuple[int, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        super().__init__(self.seed, self.key, self.order, self.place)

    def record(self, seconds: float) -> None:
        """Copies what stays of the result: its error, or its tokens and times.

        Args:
            seconds: since the answer began.
        """
        self.ended, made = seconds, self.result
        if isinstance(made, LookaheadError):
            self.error = "" if isinstance(made, Cancelled) else str(made)
            made = getattr(made, "generation", None)
        if isinstance(made, Generation):
            self.prompt_tokens, self.cached_tokens = made.prompt_tokens, made.cached_tokens
            self.generated_tokens, self.shareable = len(made.ids) + made.dropped, made.shareable
            if "spec_verify_ct" in made.meta:
                self.sd = tuple(int(made.meta.get(name) or 0) for name in SD)
            if "queue_time" in made.meta or "forward_entry_time" in made.meta:
                self.queued, self.prefill = waits(made.meta)

    def close(self, outcome: Outcome) -> None:
        """Sets the branch's outcome, once."""
        assert self.outcome is None, (
            f"{self.role} branch at {self.position} is {self.outcome} already"
        )
        self.outcome = outcome

    def release(self) -> None:
        """Frees what the answer needs no more: the record keeps its branches."""
        self.node = self.child = self.state = self.result = None
        self.so_far = ()


def settle_reuse(waiting: deque[Branch], include_unfinished: bool = False) -> None:
    """Sets ``shared_tokens`` of branches up to the first unfinished one, or of all, and takes them
    out of ``waiting``: which tokens a branch could share is known when all before it have ended.
    """
    while waiting and (include_unfinished or waiting[0].ended is not None):
        branch = waiting.popleft()
        shareable, branch.shareable = branch.shareable, None
        if shareable is not None and branch.cached_tokens is not None:  # else it is not reported
            branch.shared_tokens = shareable()
