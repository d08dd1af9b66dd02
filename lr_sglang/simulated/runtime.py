"""A simulated runtime on an event loop: behind a server's routes (``server``), or in this process (``transport``).

Requests in a batch share its speed equally: each of n takes ``Simulation.slower`` times as long as alone.
Beyond ``slots`` they wait, first come, first served.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from lr_sglang.engine.prefix_reuse import common_prefix
from lr_sglang.simulated.faults import Faults
from lr_sglang.simulated.model import Writer
from lr_sglang.simulated.replies import body, reply
from lr_sglang.simulated.simulation import Simulation

NEVER = 1e9  # seconds


class Cache:
    """The sequences that a runtime has seen last, as a radix cache would share them."""

    def __init__(self, size: int = 512) -> None:
        self._seen: deque[tuple[int, ...]] = deque(maxlen=size)
        self.add, self.clear = self._seen.append, self._seen.clear

    def find(self, prompt: tuple[int, ...]) -> int:
        """Tokens of a prompt that need not be computed again; one always is."""
        best, most = 0, len(prompt) - 1
        for known in reversed(self._seen):  # the latest share most
            if best >= most:
                break
            if best < len(known) and known[best] == prompt[best]:
                best = max(best, min(common_prefix(known, prompt), most))
        return best


@dataclass(eq=False)
class _Ticket:
    """One request.

    Attributes:
        work: seconds that it takes alone.
        done: the share of it that was done when it left.
        finish: the ``_service`` at which it is done; infinite while it waits for a slot.
    """

    work: float
    done: asyncio.Future[float]
    finish: float = math.inf
    left: bool = False


class SimulatedRuntime:
    """One role's runtime.

    Attributes:
        calls, aborted: requests so far, and those of them that were stopped.
        most: the maximum of requests that were served at once.
        late: seconds that requests ended after their time, in all.
    """

    def __init__(self, role: str, simulation: Simulation, writer: Writer) -> None:
        self.role, self.simulation, self.writer, self.steady = role, simulation, writer, simulation.steady
        self.faults = Faults(simulation.model.seed)
        self.calls = self.aborted = self.most = 0
        self.late = 0.0
        self._slower = cache(partial(simulation.slower, role))
        self._tickets: dict[str, _Ticket] = {}
        self._waiting: deque[_Ticket] = deque()
        self._served: list[tuple[float, int, _Ticket]] = []  # a heap; who has left stays until it is on top
        self._order, self._count = itertools.count(), 0  # requests that are served
        self._service, self._now = 0.0, 0.0  # seconds of service that each request in the batch has had, and when
        self._speed = 1.0  # seconds of service in a second
        self._timer: asyncio.Handle | None = None
        self._rings = 0.0  # when; uvloop's handle of a time that has passed does not know
        self._first: _Ticket | None = None  # that it rings for

    @property
    def running(self) -> int:
        """Requests that are served or wait for it."""
        return len(self._tickets)

    async def answer(
        self, payload: dict[str, Any], rid: str, more: float = 0.0, cache: Cache | None = None
    ) -> dict[str, Any]:
        """The reply to a request of /generate, after the time that it takes.

        Args:
            more: seconds that a fault adds.
            cache: what the runtime has seen; None does not report ``cached_tokens``.

        Raises:
            ValueError: a request of this id is being served.
        """
        made, cached, prompt = reply(self.writer, self.role, payload), None, tuple(payload["input_ids"])
        if cache is not None:
            cached = cache.find(prompt)
            cache.add(prompt)
        share = await self.serve(self.simulation.request(self.role, len(made.ids), len(made.scored)) + more, rid)
        answer = body(self.writer, made, share, cached, rid, bool(payload.get("return_logprob")))
        if cache is not None:
            cache.add(prompt + tuple(answer["output_ids"][:-1]))
        return answer

    async def serve(self, work: float, rid: str) -> float:
        """Takes its time; returns the share that was done when it was stopped, else 1. Each ``rid`` is served once."""
        if rid in self._tickets:
            raise ValueError(f"Duplicate request ID detected: {rid}")
        ticket = self._tickets[rid] = _Ticket(work, asyncio.get_running_loop().create_future())
        self.calls += 1
        self._advance()
        self._waiting.append(ticket)
        self._admit()
        try:
            return await ticket.done
        finally:
            del self._tickets[rid]
            self._remove(ticket)

    def abort(self, rid: str, everything: bool = False) -> None:
        """Stops requests whose id begins with ``rid``, as SGLang does."""
        self._advance()
        for known in [rid] if rid in self._tickets and not everything else list(self._tickets):
            ticket = self._tickets[known]
            if (everything or (rid and known.startswith(rid))) and not ticket.done.done():
                self.aborted += 1
                left = (ticket.finish - self._service) / ticket.work if ticket.work else 0.0
                # one that is just about to end was stopped nevertheless
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
        if self._count > self.most:
            self.most = self._count
        self._set_timer()

    def _add(self, number: int) -> None:
        """Counts requests that are served; a negative number of them have ended."""
        self._count += number
        if not self.steady and self._count:
            self._speed = 1 / self._slower(self._count)

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._count:
            self._service += (now - self._now) * self._speed
        self._now = now

    def _head(self) -> _Ticket | None:
        """The one that is served first."""
        while self._served and self._served[0][2].left:
            heapq.heappop(self._served)
        return self._served[0][2] if self._served else None

    def _due(self, ticket: _Ticket) -> float:
        """When the request is done if no other begins or ends."""
        left = ticket.finish - self._service
        return self._now + (left if left > 0 else 0.0) / self._speed

    def _set_timer(self) -> None:
        head = self._head()
        if head is self._first and self.steady:
            return  # its timer is set
        self._first, due = head, math.inf if head is None else self._due(head)
        if self._timer is not None:
            if self._rings <= due < math.inf:
                return  # it rings too early, and is set again then
            self._timer.cancel()
        self._rings, self._timer = due, None if head is None else asyncio.get_running_loop().call_at(due, self._ring)

    def _ring(self) -> None:
        self._first = self._timer = None  # it has rung, which may be too early for its ticket
        now = asyncio.get_running_loop().time()
        while (head := self._head()) is not None and (due := self._due(head)) <= now + 1e-6:
            self.late += max(0.0, now - due)
            if not head.done.done():
                head.done.set_result(1.0)
            self._remove(head)
        self._set_timer()
