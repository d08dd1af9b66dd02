"""One generation of an answer: the request in flight, the runtime's reply, and, as a branch of the
answer, its outcome.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from lr_sglang.errors import Cancelled, LookaheadError
from lr_sglang.steps.step import first_of, first_stop

if TYPE_CHECKING:
    from lr_sglang.steps.tree import Node


STREAM_TOKENS = 4  # tokens between two events of a stream, after the first token
# Request ids are unique and have the same length: SGLang aborts by prefix, so no id may be the
# prefix of another.
_PROCESS = uuid.uuid4().hex[:12]
_numbers = itertools.count()

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


@dataclass(eq=False, kw_only=True)
class Request:
    """A request for one generation. Belongs to one event loop.

    Attributes:
        seed: for the runtime's sampler; None for a random one.
        place: the next draw's number: of the tokens at the end of the prompt, so many were drawn
            with this seed. They are the answer's, or, where each step has a seed of its own, the
            step's.
        key: a router sends requests with the same key, which share a prefix, to one worker. ASCII;
            empty for none.
        order: the waiting request with the lowest order gets the next slot of the runtime.
        patience: share of the runtime's timeout that the request may take.
        on_tokens: called on the event loop with all ids generated so far, again and again while
            the runtime generates; None asks for the whole reply only. The list may grow afterwards.
        stream_interval: tokens between two such calls, after the first token; a pass that gives
            more is one call.
        increments: whether the server's events have new tokens only.
        sent: when it was sent (``time.time``); 0 before.
        cancelled: whether ``cancel`` was called.
        unheard: whether the server took no abort of it, so that its connection was closed.
        done: whether it was answered or has failed; False again after it is sent to another
            worker.
        result: the ``Generation``, or the ``LookaheadError`` that was raised.
    """

    seed: int | None = None
    key: str = ""
    order: int = 0
    place: int = 0
    patience: float = 1.0
    on_tokens: Callable[[list[int]], None] | None = field(default=None, repr=False)
    stream_interval: int = STREAM_TOKENS
    increments: bool = False
    sent: float = 0.0
    rid: str = ""
    cancelled: bool = False
    done: bool = False
    connection_closed: bool = False
    unheard: bool = False
    result: Any = field(default=None, repr=False)
    _abort: Callable[[Request], None] | None = field(default=None, repr=False)
    _task: asyncio.Task[Any] | None = field(default=None, repr=False)

    def sending(self, abort: Callable[[Request], None]) -> str:
        """Gives the request a new id, and notes how to abort it; call it right before sending.

        Args:
            abort: aborts the request on the server.

        Raises:
            Cancelled: it was cancelled before it was sent.
        """
        if self.cancelled:
            raise Cancelled("cancelled before it was sent")
        self.sent = time.time()
        self.done = False
        self._abort = abort
        self._task = asyncio.current_task()
        self.rid = f"{_PROCESS}{os.getpid():08x}{next(_numbers):012x}"
        return self.rid

    def on_cancel(self, stop: Callable[[Request], None]) -> None:
        """Sets the function that ``cancel`` calls before the request is sent."""
        self._abort = stop

    def part(self) -> Request:
        """A new request that is part of this one: cancelling this one cancels its latest part.

        Raises:
            Cancelled: this request was cancelled before.
        """
        if self.cancelled:
            raise Cancelled("cancelled before it was sent")
        made = Request(
            seed=self.seed,
            key=self.key,
            order=self.order,
            place=self.place,
            patience=self.patience,
        )
        self._abort = lambda _: made.cancel()
        return made

    def end(self) -> None:
        """Records that the request was answered or has failed, so that aborts of it stop."""
        self.done = True
        self._abort = self._task = None

    def cancel(self) -> None:
        """Aborts the generation on the server. The task that waits for it gets ``Cancelled`` when
        it has stopped.
        """
        if self.cancelled or self.done:
            return
        self.cancelled = True
        if self._abort is not None:
            self._abort(self)

    def raise_if_closed(self, role: str) -> None:
        """Call it on ``CancelledError``, which ``close_connection`` also causes, to end the request
        but not its task.

        Raises:
            Cancelled: ``close_connection`` was called.
        """
        if self.connection_closed:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            raise Cancelled("connection closed", role=role) from None

    def close_connection(self) -> None:
        """Closes the connection, for a server that refuses the abort."""
        if self._task is not None and not self.done:
            self.connection_closed = True
            self._task.cancel()


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

    def confidence(self, tokens: int) -> float | None:
        """The mean log-probability of its first tokens; None if the runtime reported none."""
        try:
            found = [float(entry[0]) for entry in self.meta["output_token_logprobs"][:tokens]]
        except (KeyError, TypeError, ValueError, IndexError):
            return None
        return sum(found) / len(found) if found and all(map(math.isfinite, found)) else None


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
    kept = ids[:most]
    why = finish
    if (at := first_of(ends, kept)) is not None:
        why = {"type": "stop", "matched": kept[at]}
        kept = kept[: at + 1]
    if kept != ids or why != finish:
        text = decode(kept if at is None else kept[:-1])
    if found := first_stop(text, stops):
        end, stop = found
        why = {"type": "stop", "matched": stop}
        text = text[:end]
    return kept, why, text


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
    # a target step used in place of rejected drafts; the read of a portion that differs
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
        path: the prefixes after which it reads drafted tokens, each a drafted step after the one
            before; ``node`` is the first.
        state: the program's state that generates.
        number: of its events.
        answered_by: the role whose runtime answers; empty: that of ``role``.
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
    path: Sequence[Node] = field(default=(), repr=False)
    state: Any = field(default=None, repr=False)

    @property
    def decodes(self) -> bool:
        """Whether it decodes a token a pass, so that its time tells what a token costs."""
        return self.purpose not in ("read", "feed")

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
        self.path = ()


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
