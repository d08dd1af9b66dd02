"""A simulated runtime in this process, on the real clock: a ``Transport`` that waits instead of computing."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lr_sglang.backend import RuntimeBackend
from lr_sglang.call import Call
from lr_sglang.config import ROLES
from lr_sglang.errors import Cancelled, RuntimeBusy, RuntimeDown, RuntimeRefused, RuntimeTimeout
from lr_sglang.simulated.engine import Ticket
from lr_sglang.simulated.faults import Faults
from lr_sglang.simulated.model import Writer
from lr_sglang.simulated.replies import MARK, body, reply
from lr_sglang.simulated.simulation import Simulation
from lr_sglang.transport import INFO_SECONDS

CONTEXT = 2**30  # tokens: an answer ends because it is at its end
NEVER = 1e9  # seconds
# A machine that sleeps wakes up so late, in seconds: so it is woken before the time, and waits for what is left of it.
EARLY = 1e-4
_PR_SET_TIMERSLACK = 29


class SimulatedTransport:
    """One role's runtime. Every request waits in its own thread, woken only when its end has changed.

    Attributes:
        faults: to order.
        calls: requests so far; ``most`` of them at once.
        late: seconds that they ended after their time, in all: the machine's, which woke their threads no sooner.
    """

    def __init__(self, role: str, simulation: Simulation, writer: Writer) -> None:
        self.role, self.simulation, self.writer = role, simulation, writer
        self.faults = Faults(simulation.model.seed)
        self.calls, self.late = 0, 0.0
        self._engine = simulation.engine()
        self._tickets: dict[Call, Ticket] = {}
        self._lock = threading.Lock()

    @property
    def most(self) -> int:
        """Requests that were served at once, at most."""
        return self._engine.most

    def generate(self, payload: dict[str, Any], call: Call, timeout: float) -> dict[str, Any]:
        """As ``Transport.generate``.

        Raises:
            Cancelled, RuntimeDown, RuntimeTimeout, RuntimeRefused: a fault was ordered.
        """
        rid, began = call.sending(self._abort), time.monotonic()
        time.sleep(0)  # others may have been sent in the same moment: what it says is made up once they are counted
        fault = self.faults.next()
        if self.faults.dead:
            raise RuntimeDown("the simulated runtime has died", role=self.role, hint="a fault was ordered")
        made = reply(self.writer, self.role, payload)
        work = self.simulation.work(self.role, len(made.ids), len(made.weighed))
        if fault is not None and fault.kind in ("late", "hang"):
            work = work + fault.seconds if fault.kind == "late" else NEVER
        sure = bool(payload.get("return_logprob"))
        whole = body(self.writer, made, rid=rid, logprobs=sure)  # made beforehand, for it is not the controller's time
        share = self._serve(Ticket(work, threading.Lock(), call.priority or 0), call, began, timeout)
        if fault is not None:
            self._go_wrong(fault.kind, call)
        if fault is not None and fault.kind == "garbage":
            return {"text": "garbage"}
        if share < 1 and not call.cancelled:
            raise RuntimeTimeout(f"no answer from the simulated runtime in {timeout:g} s", role=self.role)
        return whole if share == 1 else body(self.writer, made, share, rid=rid, logprobs=sure)

    def _go_wrong(self, kind: str, call: Call) -> None:
        if kind == "hang" and call.cancelled:
            raise Cancelled("cancelled while the runtime did not answer", role=self.role)
        if kind == "fail":
            raise RuntimeRefused("/generate: 500 a fault was ordered", role=self.role)
        if kind == "busy":
            raise RuntimeBusy("/generate: 503 a fault was ordered", role=self.role)

    def _serve(self, ticket: Ticket, call: Call, began: float, timeout: float) -> float:
        """Waits until the request is served, cancelled or too late; says what share of it was done."""
        engine, bell = self._engine, ticket.owner
        bell.acquire()
        with self._lock:
            self.calls += 1
            self._tickets[call] = ticket
            engine.add(began, ticket)
        while True:
            now = time.monotonic()
            with self._lock:
                left = min(engine.due(ticket), began + timeout) - now
                if left <= 0 or call.cancelled:
                    break
            bell.acquire(timeout=left - EARLY if left > EARLY else left)
        with self._lock:
            share = engine.served(now, ticket)
            self.late += 0.0 if call.cancelled else max(0.0, -left)
            engine.remove(now, ticket)
            del self._tickets[call]
            if not engine.steady and (head := engine.head()) is not None:
                _ring(head)  # it is served sooner now
        return share

    def _abort(self, call: Call) -> None:
        with self._lock:
            ticket = self._tickets.get(call)
            if ticket is not None:
                _ring(ticket)

    def get(self, path: str, timeout: float = INFO_SECONDS) -> dict[str, Any]:
        return {"model_path": f"simulated/{self.role}", **MARK}

    def close(self) -> None:
        pass


def _ring(ticket: Ticket) -> None:
    """Wakes who waits for a ticket; under the transport's lock, so that it is not rung twice."""
    if ticket.owner.locked():
        ticket.owner.release()


def _wake_exactly() -> None:
    """Asks the kernel not to put off this thread's timers, nor those of threads begun by it (by 50 us, to save power):
    what a simulated runtime is late would count as the controller's."""
    with suppress(AttributeError, OSError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def simulated_roles(simulation: Simulation, writer: Writer | None = None) -> Mapping[str, RuntimeBackend]:
    """Backends of three simulated runtimes in this process, by role."""
    writer = writer or Writer(simulation.model)
    _wake_exactly()
    roles: dict[str, RuntimeBackend] = {
        role: RuntimeBackend(
            role,
            SimulatedTransport(role, simulation, writer),
            writer.words.tokenizer,
            context=CONTEXT,
            timeout=3600.0,
            seeded=True,
            slots=simulation.slots,
            token_layer="",
        )
        for role in ROLES
    }
    for backend in roles.values():
        backend.roles, backend.simulated = roles, True
    return roles
