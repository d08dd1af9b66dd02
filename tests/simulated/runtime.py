"""A simulated runtime on an event loop, with an HTTP server (``server``) or without
(``transport``), its faults, and its replies in SGLang's format.

Requests in a batch share its speed equally: each of n takes ``Simulation.slower`` times as long as
alone. If all ``slots`` are taken, requests wait in order of arrival.
"""

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lr_sglang.sglang_api.plugin_protocol import place_of
from tests.simulated.model import Simulation, Writer

Kind = Literal["late", "fail", "busy", "hang", "die", "garbage"]
NEVER = 1e9  # seconds
NEARLY = 1e-6  # seconds of work that are no work
EARLY = 0.005  # seconds: a timer of uvloop may ring a millisecond before its time


@dataclass(frozen=True)
class Fault:
    """A configured fault.

    Attributes:
        kind: ``late`` takes ``seconds`` longer; ``fail`` replies with an error status, ``busy``
            with that of a full server; ``hang`` never replies; ``die`` ends the runtime;
            ``garbage`` is a reply that is no generation.
        share: share of requests with the fault, drawn with a seed.
        times: maximum number of requests with the fault; None for no limit.
        after: number of first requests without the fault.
    """

    kind: Kind
    share: float = 1.0
    times: int | None = None
    after: int = 0
    seconds: float = 1.0


class Faults:
    """The faults of a runtime."""

    def __init__(self) -> None:
        self._orders: list[list[Any]] = []  # fault, requests seen, times left
        self._draw = random.Random(0)
        self.dead = False

    def order(self, fault: Fault) -> None:
        self._orders.append([fault, 0, fault.times])

    def clear(self) -> None:
        self._orders.clear()
        self.dead = False

    def next(self) -> Fault | None:
        """The fault of the next request: the first one that applies, or None."""
        for order in self._orders:
            fault: Fault
            fault, seen, left = order
            order[1] += 1
            if seen < fault.after or left == 0 or self._draw.random() >= fault.share:
                continue
            if left is not None:
                order[2] -= 1
            self.dead = self.dead or fault.kind == "die"
            return fault
        return None


@dataclass(eq=False)
class _Ticket:
    """One request.

    Attributes:
        work: seconds without concurrent requests; ``left`` of them are still to be done.
        due: when it is done if no other changes that.
        done: set at its end, to the share of the work that was done.
    """

    work: float
    left: float
    due: float
    done: asyncio.Future[float]


class SimulatedRuntime:
    """One role's runtime.

    Attributes:
        most, aborted: maximum number of concurrent requests; number of aborted ones.
        late: total seconds by which requests ended late.
    """

    def __init__(self, role: str, simulation: Simulation, writer: Writer) -> None:
        self.role, self.simulation, self.writer = role, simulation, writer
        self.steady = simulation.steady
        self.faults = Faults()
        self.most = self.aborted = 0
        self._order = itertools.count()
        self.late = 0.0
        self._tickets: dict[str, _Ticket] = {}  # in order of arrival
        self._due: list[tuple[float, int, _Ticket]] = []  # a heap
        self._batch: list[_Ticket] = []
        self._since, self._speed = 0.0, 1.0  # of the batch: time of the last look, work per second
        self._timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        """Number of requests in the batch or waiting for a slot."""
        return len(self._tickets)

    async def answer(
        self,
        payload: dict[str, Any],
        rid: str,
        more: float = 0.0,
        on_tokens: Callable[[list[int]], None] | None = None,
    ) -> dict[str, Any]:
        """Waits for the time of a /generate request, then returns the reply.

        Args:
            more: seconds that a fault adds.
            on_tokens: called with the tokens so far, as a stream of SGLang's.

        Raises:
            ValueError: a request with this id is in progress.
        """
        made = reply(self.writer, self.role, payload)
        work = self.simulation.work(self.role, len(made.ids), len(made.scored)) + more
        streaming = on_tokens and asyncio.create_task(self._stream(rid, made.ids, on_tokens))
        try:
            share = await self.serve(work, rid)
        finally:
            if streaming:
                streaming.cancel()
        return body(self.writer, made, share, rid, bool(payload.get("return_logprob")))

    async def _stream(
        self, rid: str, ids: Sequence[int], on_tokens: Callable[[list[int]], None]
    ) -> None:
        """Calls ``on_tokens`` when a request has another token of ``ids``."""
        told = 0
        while True:
            if (ticket := self._tickets.get(rid)) is not None:
                self._share()
                written = int(len(ids) * self._written(ticket))
                if told < written < len(ids):
                    told = written
                    on_tokens(list(ids[:written]))
            await asyncio.sleep(self.simulation.work(self.role, 1, 0))

    async def serve(self, work: float, rid: str) -> float:
        """Waits until the work is done or aborted; returns the share done. Raises ValueError for a
        duplicate id.
        """
        if rid in self._tickets:
            raise ValueError(f"Duplicate request ID detected: {rid}")
        loop = asyncio.get_running_loop()
        ticket = _Ticket(work, work, loop.time() + work, loop.create_future())
        self._tickets[rid] = ticket
        timer = None
        if self.steady:
            heapq.heappush(self._due, (ticket.due, next(self._order), ticket))
            timer = loop.call_at(ticket.due, self._end)
        self._share()
        try:
            return await ticket.done
        finally:
            if timer is not None:
                timer.cancel()
            del self._tickets[rid]
            self._share()

    def abort(self, rid: str, everything: bool = False) -> None:
        """Aborts requests whose id begins with ``rid``, as SGLang does."""
        self._share()
        for known in [rid] if rid in self._tickets and not everything else list(self._tickets):
            ticket = self._tickets[known]
            if (everything or (rid and known.startswith(rid))) and not ticket.done.done():
                self.aborted += 1
                # less than 1, because the request was aborted
                ticket.done.set_result(min(self._written(ticket), 1 - 1e-9))

    def _written(self, ticket: _Ticket) -> float:
        """The share of the work that is done."""
        now = asyncio.get_running_loop().time()
        left = ticket.due - now if self.steady else ticket.left
        return max(0.0, 1 - left / ticket.work) if ticket.work else 0.0

    def _end(self) -> None:
        """Ends what is due in a steady runtime; of one moment in order of arrival."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._due and self._due[0][0] <= now + NEARLY:
            due, _, ticket = heapq.heappop(self._due)
            if not ticket.done.done():
                self.late += max(0.0, now - due)
                ticket.done.set_result(1.0)
        if self._due and self._due[0][0] <= now + EARLY:
            loop.call_at(self._due[0][0], self._end)

    def _share(self) -> None:
        """Counts what the batch has done since the last look, ends who is done, admits who waits,
        and looks again when the next is done. In a steady runtime each request has its own timer.
        """
        if self.steady:
            self.most = max(self.most, len(self._tickets))
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        for ticket in self._batch:
            ticket.left -= (now - self._since) * self._speed
            if ticket.left <= NEARLY and not ticket.done.done():
                ticket.done.set_result(1.0)
        open_now = [ticket for ticket in self._tickets.values() if not ticket.done.done()]
        self._since, self._batch = now, open_now[: self.simulation.slots]
        self.most = max(self.most, len(self._batch))
        self._speed = 1 / self.simulation.slower(len(self._batch))
        if self._timer is not None:
            self._timer.cancel()
        if self._batch:
            next_left = min(ticket.left for ticket in self._batch)
            self._timer = loop.call_at(now + next_left / self._speed, self._share)


# -- replies


DEFAULT_TOKENS = 128  # SGLang's own max_new_tokens
LIKELY = -0.05  # log-probability of a token


@dataclass(frozen=True)
class Reply:
    """A complete reply, before its time has passed.

    Attributes:
        ids: all tokens of the reply; its text lacks the last ``trimmed`` of them.
        finish: its finish_reason.
        scored: log-probabilities of the last tokens of the prompt.
    """

    ids: tuple[int, ...]
    finish: dict[str, Any]
    prompt_tokens: int
    trimmed: int = 0
    scored: tuple[float, ...] = ()


def reply(writer: Writer, role: str, payload: dict[str, Any]) -> Reply:
    """The reply of a role to a payload of /generate with ``input_ids``."""
    prompt, sampling = payload["input_ids"], payload.get("sampling_params") or {}
    words, asked = writer.words, sampling.get("max_new_tokens")
    most = DEFAULT_TOKENS if asked is None else int(asked)
    finish: dict[str, Any] = {"type": "length", "length": most}
    if role == "judge":
        return Reply(words.tokenizer.encode(writer.judge(prompt))[:most], finish, len(prompt))
    if sampling.get("ignore_eos") and (seed := sampling.get("sampling_seed")) is not None:
        # no answer: whether seeds are honoured is asked, and they are
        place = place_of(sampling.get("custom_params"))
        noise = (random.Random(f"{seed}/{place + n}").randrange(256) for n in range(most))
        return Reply(tuple(words.filler(bytes(noise))), finish, len(prompt))
    if most <= 0:
        start = payload.get("logprob_start_len", -1) if payload.get("return_logprob") else -1
        # as SGLang, without one for the first token
        scored = (LIKELY,) * (len(prompt) - start - 1) if start >= 0 else ()
        return Reply((), finish, len(prompt), scored=scored)
    stop, version = sampling.get("stop"), writer.model.version(role, sampling.get("sampling_seed"))
    written = writer.write(writer.place(prompt), version, most, bool(stop))
    cut = len(written.ids) >= most  # an end at the last token is reported as ``length``
    if not cut:
        finish = {"type": "stop", "matched": stop if written.finish == "delimiter" else words.eos}
    keeps = cut or sampling.get("no_stop_trim")
    return Reply(written.ids, finish, len(prompt), 0 if keeps else 1)


def body(
    writer: Writer,
    made: Reply,
    share: float = 1.0,
    rid: str = "",
    logprobs: bool = False,
) -> dict[str, Any]:
    """The JSON of a reply.

    Args:
        share: share of the tokens that were written; less than 1 if it was aborted.
    """
    aborted = share < 1
    ids = made.ids[: int(share * len(made.ids))] if aborted else made.ids
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": {"type": "abort", "message": "aborted"} if aborted else made.finish,
        "prompt_tokens": made.prompt_tokens,
        "completion_tokens": len(ids),
    }
    if logprobs:
        sure = writer.confidence(ids)
        rows = [[sure, token, None] for token in ids]
        meta |= {"output_token_logprobs": rows, "output_top_logprobs": [[one] for one in rows]}
    if made.scored and not aborted:
        meta["input_token_logprobs"] = [[one, None, None] for one in (None, *made.scored)]
    shown = ids if aborted or not made.trimmed else ids[: -made.trimmed]
    return {"text": writer.words.text(shown), "output_ids": list(ids), "meta_info": meta}
