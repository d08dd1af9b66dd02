"""One generation of an answer, from its request to its outcome."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from lr_sglang.engine.generation import Generation, waits
from lr_sglang.engine.prefix_reuse import LoggedRequest
from lr_sglang.engine.request import Request
from lr_sglang.errors import Cancelled, LookaheadError
from lr_sglang.steps.speculation import NO_SPECULATION, Speculation
from lr_sglang.steps.tree import Node, Outcome


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
    speculation: Speculation = NO_SPECULATION
    queued: float | None = None
    prefill: float | None = None
    outcome: Outcome | None = None
    error: str = ""
    entry: LoggedRequest | None = field(default=None, repr=False)
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
            self.generated_tokens, self.entry = len(made.ids) + made.dropped, made.entry
            if "spec_verify_ct" in made.meta:
                self.speculation = made.speculation
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


class PendingReuse:
    """Branches of an answer whose ``shared_tokens`` are not known yet, because an earlier branch is
    unfinished.
    """

    def __init__(self) -> None:
        self._waiting: deque[Branch] = deque()

    def add(self, branch: Branch) -> None:
        """Adds a branch; call it in the order in which branches begin."""
        self._waiting.append(branch)

    def settle(self, include_unfinished: bool = False) -> None:
        """Sets ``shared_tokens`` of branches up to the first unfinished one, or of all; frees their
        tokens.
        """
        while self._waiting and (include_unfinished or self._waiting[0].ended is not None):
            branch = self._waiting.popleft()
            entry, branch.entry = branch.entry, None
            if (
                entry is not None and branch.cached_tokens is not None
            ):  # otherwise it is not reported
                branch.shared_tokens = entry.log.shareable(entry)
