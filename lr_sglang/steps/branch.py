"""One generation of an answer, from its request over the runtime's reply to its outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from lr_sglang.errors import Cancelled, LookaheadError
from lr_sglang.steps.generation import Generation
from lr_sglang.steps.request import Request

if TYPE_CHECKING:
    from lr_sglang.steps.tree import Node

# SGLang's counts of its speculative decoding: verifications, drafted and accepted tokens.
SD = ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts")
SD_ACCEPTED = "spec_correct_drafts_histogram"

# ``draft``: the draft writes a version of a step. ``guess``: it writes what may follow in the
# target's version. ``write``: the target writes its version, or several steps. ``feed``: several
# steps, while its server gets what the draft guesses. ``read``: it reads drafted tokens.
# ``verify``: a verifier asks a runtime.
Purpose = Literal["draft", "guess", "write", "feed", "read", "verify"]

ROLES: dict[Purpose, str] = {
    "draft": "draft",
    "guess": "draft",
    "write": "target",
    "feed": "target",
    "read": "target",
    "verify": "judge",
}


def waits(meta: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Seconds in the queue and seconds of the prefill, from a runtime's meta_info; None if not
    reported.

    SGLang reports them with ``--enable-metrics``: ``queue_time``, and ``forward_entry_time`` and
    ``prefill_finished_time`` as times of day.
    """
    queued = _positive(meta.get("queue_time"))
    began = _positive(meta.get("forward_entry_time"))
    ended = _positive(meta.get("prefill_finished_time"))
    prefill = ended - began if began and ended and ended >= began else None
    return queued, prefill


def _positive(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and value >= 0 else None


class Outcome(StrEnum):
    """The outcome of a branch."""

    # a draft step that was kept, or the target step that it was compared with; what the draft wrote
    # ahead of a fed target; a read or a guess that the target agrees with to its end
    ACCEPTED = "accepted"
    # a draft step that the verifier rejected, or that came too late
    REJECTED = "rejected"
    # a target step used in place of rejected drafts; a read that has found another token
    CORRECTED = "corrected"
    # steps of the target where there was no draft to compare with, and every fed request
    BONUS = "bonus"
    # the branch was no longer needed
    CANCELLED = "cancelled"


@dataclass(eq=False)
class Branch(Request):
    """A request for a step, or of a verifier, and what became of it. Times are seconds since the
    answer began.

    Attributes:
        purpose: what it is for; role: whose tokens it generates, ``judge`` for any verifier.
        node: the prefix that it goes on from; child: the drafted node that it writes, or verifies;
            None where it belongs to the target's version. They, ``state`` and ``result`` are None
            once the answer has entered the result.
        state: the program's state that generates.
        number: of its events.
        answered_by: the role whose runtime answers; empty: that of ``role``.
        so_far: tokens generated so far, where the answer shows them while they are generated.
        ended: when its result came; None before.
        sd: counts of its token layer, as of ``trace.acceptance``; ``sd_accepted``: how many of its
            verifications accepted 0, 1, 2 and so on drafted tokens.
        shared_tokens: tokens of its prompt that an earlier request of its runtime shares.
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
    sd_accepted: tuple[int, ...] = ()
    queued: float | None = None
    prefill: float | None = None
    outcome: Outcome | None = None
    error: str = ""
    answered_by: str = ""
    purpose: Purpose = "write"
    number: int = 0
    shareable: Callable[[], int] | None = field(default=None, repr=False)
    node: Node | None = field(default=None, repr=False)
    child: Node | None = field(default=None, repr=False)
    state: Any = field(default=None, repr=False)
    so_far: Sequence[int] = field(default=(), repr=False)

    @property
    def decodes(self) -> bool:
        """Whether it decodes a token a pass, so that its time tells what a token costs."""
        return self.purpose not in ("read", "feed")

    def __post_init__(self) -> None:
        super().__init__(self.seed, self.key, self.order, self.place)

    def record(self, seconds: float) -> None:
        """Copies what stays of the result: its error, or its tokens and times.

        Args:
            seconds: since the answer began.
        """
        self.ended = seconds
        made = self.result
        if isinstance(made, LookaheadError):
            self.error = "" if isinstance(made, Cancelled) else str(made)
            made = getattr(made, "generation", None)
        if isinstance(made, Generation):
            self.prompt_tokens = made.prompt_tokens
            self.cached_tokens = made.cached_tokens
            self.generated_tokens = len(made.ids) + made.dropped
            self.shareable = made.shareable
            if "spec_verify_ct" in made.meta:
                self.sd = tuple(int(made.meta.get(name) or 0) for name in SD)
                self.sd_accepted = tuple(map(int, made.meta.get(SD_ACCEPTED) or ()))
            if "queue_time" in made.meta or "forward_entry_time" in made.meta:
                self.queued, self.prefill = waits(made.meta)

    @property
    def reused_tokens(self) -> int:
        """Tokens found in the cache of those that an earlier request shares."""
        return min(self.cached_tokens or 0, self.shared_tokens or 0)

    @property
    def passes(self) -> int:
        """Passes of its runtime that verified guesses for it, or else decoded a token: the first
        token is its prefill's.
        """
        return self.sd[0] or max(0, self.generated_tokens - 1)

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
        shareable = branch.shareable
        branch.shareable = None
        if shareable is not None and branch.cached_tokens is not None:  # else it is not reported
            branch.shared_tokens = shareable()
