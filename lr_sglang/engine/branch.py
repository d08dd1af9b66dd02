"""One generation of an answer, from its request over the runtime's reply to its outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from lr_sglang.engine.request import Request
from lr_sglang.errors import Cancelled, LookaheadError
from lr_sglang.steps.step import first_of, first_stop
from lr_sglang.steps.tree import Node, Outcome

# SGLang's counts of its speculative decoding: verifications, drafted and accepted tokens.
SD = ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts")

SD_ACCEPTED = "spec_correct_drafts_histogram"


def until(
    ids: tuple[int, ...],
    finish: dict[str, Any],
    text: str,
    *,
    most: int,
    ends: Set[int],
    stops: Sequence[str],
    decode: Callable[[Sequence[int]], str],
) -> tuple[tuple[int, ...], dict[str, Any], str]:
    """What a runtime generated, up to the first of cap, end of sequence and stop string.

    SGLang 0.5.16 reports an end of sequence at token ``max_new_tokens`` as ``length``. With a token
    layer, if one pass exceeds the cap, the reply also contains tokens after an end of sequence or a
    stop string.

    Args:
        ids: token ids.
        finish: SGLang's finish_reason.
        text: the decoded text, without a stop string that is to be trimmed.
        most: maximum number of tokens.
        ends: ids that end a sequence.
        stops: stop strings; the text is cut before the first one.
    """
    kept, why = ids[:most], finish
    if (at := first_of(ends, kept)) is not None:
        kept, why = kept[: at + 1], {"type": "stop", "matched": kept[at]}
    if kept != ids or why != finish:
        text = decode(kept if at is None else kept[:-1])
    if found := first_stop(text, stops):
        why, text = {"type": "stop", "matched": found[1]}, text[: found[0]]
    return kept, why, text


@dataclass(frozen=True)
class Generation:
    """A runtime's reply to one request.

    Attributes:
        ids: generated token ids, up to the end of sequence.
        finish: ``stop``, ``length`` or ``abort``.
        eos: the end-of-sequence id, if there is one.
        cached_tokens: tokens of the prompt found in the prefix cache; None if the runtime did not
            report it.
        meta: the runtime's own meta_info.
        shareable: gives the tokens of the prompt that an earlier request shares: see
            ``RequestLog``.
        logprobs: log-probabilities of the last tokens of the prompt, as many as the request asked
            for.
        dropped: tokens that the runtime generated after ``ids``.
    """

    ids: tuple[int, ...]
    finish: str
    eos: int | None
    prompt_tokens: int
    cached_tokens: int | None
    meta: dict[str, Any] = field(repr=False)
    shareable: Callable[[], int] | None = field(default=None, repr=False)
    logprobs: tuple[float, ...] = field(default=(), repr=False)
    dropped: int = 0

    @property
    def ends(self) -> frozenset[int]:
        """A set of the end-of-sequence id; empty if there is none."""
        return frozenset() if self.eos is None else frozenset((self.eos,))


def each_stop(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The stop strings of a ``gen``."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def waits(meta: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Seconds in the queue and seconds of the prefill, from a runtime's meta_info; None if not
    reported.

    SGLang reports them with ``--enable-metrics``: ``queue_time``, and ``forward_entry_time`` and
    ``prefill_finished_time`` as times of day.
    """
    queued = _positive(meta.get("queue_time"))
    began, ended = (
        _positive(meta.get("forward_entry_time")),
        _positive(meta.get("prefill_finished_time")),
    )
    prefill = ended - began if began and ended and ended >= began else None
    return queued, prefill


def _positive(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and value >= 0 else None


@dataclass(eq=False)
class Branch(Request):
    """A request for a step, or of a verifier, and what became of it. Times are seconds since the
    answer began.

    Attributes:
        node: the prefix that it goes on from; child: the drafted node that it writes, or judges;
            None where the target writes. They, ``state`` and ``result`` are None once the answer
            has entered the result.
        state: the program's state that generates.
        reads: whether it reads drafted tokens, so that its time does not tell what a written
            token costs.
        number: of its events; 0 where there are none.
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
    reads: bool = False
    number: int = 0
    shareable: Callable[[], int] | None = field(default=None, repr=False)
    node: Node | None = field(default=None, repr=False)
    child: Node | None = field(default=None, repr=False)
    state: Any = field(default=None, repr=False)
    so_far: Sequence[int] = field(default=(), repr=False)

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
        shareable, branch.shareable = branch.shareable, None
        if shareable is not None and branch.cached_tokens is not None:  # else it is not reported
            branch.shared_tokens = shareable()
