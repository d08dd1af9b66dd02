"""A simulated runtime on an event loop: behind a server's routes (``server``), or in this process (``transport``)."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from lr_sglang.engine.prefix_reuse import common_prefix
from lr_sglang.simulated.faults import Faults
from lr_sglang.simulated.model import Writer
from lr_sglang.simulated.replies import body, reply
from lr_sglang.simulated.simulation import Simulation
from lr_sglang.simulated.timing import Ticket

NEVER = 1e9  # seconds


class Cache:
    """The sequences that a runtime has seen last, as a radix cache would share them."""

    def __init__(self, size: int = 512) -> None:
        self._seen: deque[tuple[int, ...]] = deque(maxlen=size)

    def find(self, prompt: tuple[int, ...]) -> int:
        """Tokens of a prompt that need not be computed again; one always is."""
        best, most = 0, len(prompt) - 1
        for known in reversed(self._seen):  # the latest share most
            if best >= most:
                break
            if best < len(known) and known[best] == prompt[best]:
                best = max(best, min(common_prefix(known, prompt), most))
        return best

    def add(self, tokens: tuple[int, ...]) -> None:
        """They have been computed."""
        self._seen.append(tokens)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._seen.clear()


class SimulatedRuntime:
    """One role's runtime, within the event loop that serves it.

    Attributes:
        calls, aborted: requests so far, and those of them that were stopped.
        late: seconds that requests ended after their time, in all.
    """

    def __init__(self, role: str, simulation: Simulation, writer: Writer) -> None:
        self.role, self.simulation, self.writer = role, simulation, writer
        self.faults = Faults(simulation.model.seed)
        self.calls = self.aborted = 0
        self.late = 0.0
        self._timing = simulation.timing()
        self._tickets: dict[str, Ticket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._first: Ticket | None = None  # that it rings for

    @property
    def running(self) -> int:
        """Requests that are served or wait for it."""
        return len(self._tickets)

    @property
    def most(self) -> int:
        """Requests that were served at once, at most."""
        return self._timing.most

    @property
    def steady(self) -> bool:
        """Whether no request's end depends on the others."""
        return self._timing.steady

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
        work = self.simulation.work(self.role, len(made.ids), len(made.scored)) + more
        share = await self.serve(work, rid, int(payload.get("priority") or 0))
        answer = body(self.writer, made, share, cached, rid, bool(payload.get("return_logprob")))
        if cache is not None:
            cache.add(prompt + tuple(answer["output_ids"][:-1]))
        return answer

    async def serve(self, work: float, rid: str, priority: int = 0) -> float:
        """Takes as long as it takes; says what share of it was done when it was stopped, 1 when it was not.

        Args:
            priority: higher goes first of those that wait for a slot.

        Raises:
            ValueError: a request of this id is being served.
        """
        if rid in self._tickets:
            raise ValueError(f"Duplicate request ID detected: {rid}")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[float] = loop.create_future()
        ticket = self._tickets[rid] = Ticket(work, done, priority)
        self.calls += 1
        self._timing.add(loop.time(), ticket)
        self._set_timer()
        try:
            return await done
        finally:
            del self._tickets[rid]
            self._timing.remove(loop.time(), ticket)
            self._set_timer()

    def abort(self, rid: str, everything: bool = False) -> None:
        """Stops requests whose id begins with ``rid``, as SGLang does."""
        now = asyncio.get_running_loop().time()
        found = [rid] if rid in self._tickets and not everything else list(self._tickets)
        for known in found:
            ticket = self._tickets[known]
            if (everything or (rid and known.startswith(rid))) and not ticket.owner.done():
                self.aborted += 1
                # one that is just about to end was stopped nevertheless
                ticket.owner.set_result(min(self._timing.served(now, ticket), 1 - 1e-9))

    def _set_timer(self) -> None:
        head = self._timing.head()
        if head is self._first and self.steady:
            return  # its timer is set
        if self._timer is not None:
            self._timer.cancel()
        self._first = head
        loop = asyncio.get_running_loop()
        self._timer = None if head is None else loop.call_at(self._timing.due(head), self._ring)

    def _ring(self) -> None:
        self._first = None  # it has rung, which may be too early for its ticket
        now = asyncio.get_running_loop().time()
        while (head := self._timing.head()) is not None and self._timing.due(head) <= now + 1e-6:
            self.late += max(0.0, now - self._timing.due(head))
            self._timing.remove(now, head)
            if not head.owner.done():
                head.owner.set_result(1.0)
        self._set_timer()

    def info(self) -> dict[str, Any]:
        """What ``/server_info`` says of it, beside that it is simulated."""
        return {
            "model_path": f"simulated/{self.role}",
            "device": "simulated",
            "context_length": 2**20,
            "enable_deterministic_inference": True,
            "speculative_algorithm": None,
            "internal_states": [{"effective_max_running_requests_per_dp": self.simulation.slots}],
            "simulation": self.simulation.to_dict(),
        }
