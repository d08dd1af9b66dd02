"""A simulated runtime on an event loop, with an HTTP server (``server``) or without
(``transport``).

Requests in a batch share its speed equally: each of n takes ``Simulation.slower`` times as long as
alone. If all ``slots`` are taken, requests wait in order of arrival.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from lr_sglang.engine.prefix_reuse import common_prefix
from tests.simulated.faults import Faults
from tests.simulated.model import Writer
from tests.simulated.replies import body, reply
from tests.simulated.simulation import Simulation

NEVER = 1e9  # seconds


class Cache:
    """A radix cache of the last sequences of a runtime."""

    def __init__(self, size: int = 512) -> None:
        self._seen: deque[tuple[int, ...]] = deque(maxlen=size)
        self.add, self.clear = self._seen.append, self._seen.clear

    def find(self, prompt: tuple[int, ...]) -> int:
        """Number of cached tokens of a prompt; the last one is always computed."""
        best, most = 0, len(prompt) - 1
        for known in reversed(self._seen):  # the latest sequences share most
            if best >= most:
                break
            if best < len(known) and known[best] == prompt[best]:
                best = max(best, min(common_prefix(known, prompt), most))
        return best


@dataclass(eq=False)
class _Ticket:
    """One request.

    Attributes:
        work: seconds without concurrent requests.
        done: set at its end, to the share of the work that was done.
        finish: the value of ``_service`` at which it is complete; infinite while it waits for a
            slot.
    """

    work: float
    done: asyncio.Future[float]
    finish: float = math.inf
    left: bool = False


class SimulatedRuntime:
    """One role's runtime.

    Attributes:
        late: total seconds by which requests ended late.
    """

    def __init__(self, role: str, simulation: Simulation, writer: Writer) -> None:
        self.role, self.simulation, self.writer, self.steady = (
            role,
            simulation,
            writer,
            simulation.steady,
        )
        self.faults = Faults(simulation.model.seed)
        self.late = 0.0
        self._slower = cache(simulation.slower)
        self._tickets: dict[str, _Ticket] = {}
        self._waiting: deque[_Ticket] = deque()
        self._served: list[
            tuple[float, int, _Ticket]
        ] = []  # a heap; tickets that have left are removed when on top
        self._order, self._count = (
            itertools.count(),
            0,
        )  # tie-breaker of the heap; requests in the batch
        self._service, self._now = (
            0.0,
            0.0,
        )  # service since the start, of a request always in the batch; time of that
        self._speed = 1.0  # seconds of service per second
        self._timer: asyncio.Handle | None = None
        self._rings = 0.0  # the timer's time, which uvloop's handle may not have
        self._first: _Ticket | None = None  # the ticket of the timer

    @property
    def running(self) -> int:
        """Number of requests in the batch or waiting for a slot."""
        return len(self._tickets)

    async def answer(
        self,
        payload: dict[str, Any],
        rid: str,
        more: float = 0.0,
        cache: Cache | None = None,
        on_tokens: Callable[[list[int]], None] | None = None,
    ) -> dict[str, Any]:
        """Waits for the time of a /generate request, then returns the reply.

        Args:
            more: seconds that a fault adds.
            cache: the runtime's radix cache; None to report no ``cached_tokens``.
            on_tokens: called with the tokens so far, as a stream of SGLang's.

        Raises:
            ValueError: a request with this id is in progress.
        """
        made, cached, prompt = (
            reply(self.writer, self.role, payload),
            None,
            tuple(payload["input_ids"]),
        )
        if cache is not None:
            cached = cache.find(prompt)
            cache.add(prompt)
        work = self.simulation.work(self.role, len(made.ids), len(made.scored)) + more
        streaming = on_tokens and asyncio.create_task(self._stream(rid, made.ids, on_tokens))
        try:
            share = await self.serve(work, rid)
        finally:
            if streaming:
                streaming.cancel()
        answer = body(self.writer, made, share, cached, rid, bool(payload.get("return_logprob")))
        if cache is not None:
            cache.add(prompt + tuple(answer["output_ids"][:-1]))
        return answer

    async def _stream(
        self, rid: str, ids: Sequence[int], on_tokens: Callable[[list[int]], None]
    ) -> None:
        """Calls ``on_tokens`` when a request has another token of ``ids``."""
        told = 0
        while True:
            if (ticket := self._tickets.get(rid)) is not None and ticket.finish < math.inf:
                self._advance()
                written = int(len(ids) * (1 - (ticket.finish - self._service) / ticket.work))
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
        ticket = self._tickets[rid] = _Ticket(work, asyncio.get_running_loop().create_future())
        self._advance()
        self._waiting.append(ticket)
        self._admit()
        try:
            return await ticket.done
        finally:
            del self._tickets[rid]
            self._remove(ticket)

    def abort(self, rid: str, everything: bool = False) -> None:
        """Aborts requests whose id begins with ``rid``, as SGLang does."""
        self._advance()
        for known in [rid] if rid in self._tickets and not everything else list(self._tickets):
            ticket = self._tickets[known]
            if (everything or (rid and known.startswith(rid))) and not ticket.done.done():
                left = (ticket.finish - self._service) / ticket.work if ticket.work else 0.0
                # less than 1, because the request was aborted
                ticket.done.set_result(max(0.0, min(1 - left, 1 - 1e-9)))

    def _remove(self, ticket: _Ticket) -> None:
        if ticket.left:
            return
        self._advance()
        ticket.left = True
        if ticket.finish < math.inf:
            self._add(-1)
        else:
            self._waiting.remove(ticket)
        if not self.steady or ticket is self._first:
            self._admit()

    def _admit(self) -> None:
        slots = self.simulation.slots
        while self._waiting and (slots is None or self._count < slots):
            ticket = self._waiting.popleft()
            ticket.finish = self._service + ticket.work
            heapq.heappush(self._served, (ticket.finish, next(self._order), ticket))
            self._add(1)
        self._set_timer()

    def _add(self, number: int) -> None:
        """Adds to the number of requests in the batch; a negative number removes some."""
        self._count += number
        if not self.steady and self._count:
            self._speed = 1 / self._slower(self._count)

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._count:
            self._service += (now - self._now) * self._speed
        self._now = now

    def _head(self) -> _Ticket | None:
        """The request that will be complete first."""
        while self._served and self._served[0][2].left:
            heapq.heappop(self._served)
        return self._served[0][2] if self._served else None

    def _due(self, ticket: _Ticket) -> float:
        """The time at which a request is complete if no other begins or ends."""
        left = ticket.finish - self._service
        return self._now + (left if left > 0 else 0.0) / self._speed

    def _set_timer(self) -> None:
        head = self._head()
        if head is self._first and self.steady:
            return  # the timer is set for it
        self._first, due = head, math.inf if head is None else self._due(head)
        if self._timer is not None:
            if self._rings <= due < math.inf:
                return  # the timer fires earlier, and is then set again
            self._timer.cancel()
        self._rings, self._timer = (
            due,
            None if head is None else asyncio.get_running_loop().call_at(due, self._ring),
        )

    def _ring(self) -> None:
        self._first = self._timer = None  # the timer has fired, maybe too early
        now = asyncio.get_running_loop().time()
        while (head := self._head()) is not None and (due := self._due(head)) <= now + 1e-6:
            self.late += max(0.0, now - due)
            if not head.done.done():
                head.done.set_result(1.0)
            self._remove(head)
        self._set_timer()
