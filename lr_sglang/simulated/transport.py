"""A simulated runtime in this process: a ``Transport`` that waits on the event loop instead of computing."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lr_sglang.config import ROLES
from lr_sglang.engine.client import INFO_SECONDS
from lr_sglang.engine.request import Request
from lr_sglang.errors import Cancelled, RuntimeBusy, RuntimeDown, RuntimeRefused, RuntimeTimeout
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.simulated.model import Writer
from lr_sglang.simulated.replies import MARK, body, reply
from lr_sglang.simulated.runtime import NEVER, SimulatedRuntime
from lr_sglang.simulated.simulation import Simulation

CONTEXT = 2**30  # tokens: an answer ends because it is at its end
_PR_SET_TIMERSLACK = 29


class SimulatedTransport:
    """One role's runtime.

    Attributes:
        faults: to order.
        calls: requests so far; ``most`` of them at once.
        late: seconds that they ended after their time, in all: the loop's, which was busy.
    """

    def __init__(self, role: str, simulation: Simulation, writer: Writer) -> None:
        self.role, self.simulation, self.writer = role, simulation, writer
        self._runtime = SimulatedRuntime(role, simulation, writer)
        self.faults = self._runtime.faults

    @property
    def calls(self) -> int:
        """Requests so far."""
        return self._runtime.calls

    @property
    def most(self) -> int:
        """Requests that were served at once, at most."""
        return self._runtime.most

    @property
    def late(self) -> float:
        """Seconds that requests ended after their time, in all."""
        return self._runtime.late

    async def generate(self, payload: dict[str, Any], request: Request, timeout: float) -> dict[str, Any]:
        """As ``Transport.generate``.

        Raises:
            Cancelled, RuntimeDown, RuntimeTimeout, RuntimeRefused: a fault was ordered.
        """
        rid = request.sending(self._abort)
        try:
            fault = self.faults.next()
            if self.faults.dead:
                raise RuntimeDown("the simulated runtime has died", role=self.role, hint="a fault was ordered")
            made = reply(self.writer, self.role, payload)
            work = self.simulation.work(self.role, len(made.ids), len(made.weighed))
            if fault is not None and fault.kind in ("late", "hang"):
                work = work + fault.seconds if fault.kind == "late" else NEVER
            share = await self._serve(work, rid, request, timeout)
            if fault is not None:
                self._go_wrong(fault.kind, request)
                if fault.kind == "garbage":
                    return {"text": "garbage"}
            return body(self.writer, made, share, rid=rid, logprobs=bool(payload.get("return_logprob")))
        except asyncio.CancelledError:
            request.raise_if_hung_up(self.role)
            raise
        finally:
            request.end()

    async def _serve(self, work: float, rid: str, request: Request, timeout: float) -> float:
        served = self._runtime.serve(work, rid, request.priority or 0)
        if work <= timeout and self._runtime.steady:
            return await served
        try:
            return await asyncio.wait_for(served, timeout)
        except TimeoutError:
            error = RuntimeTimeout(f"no answer from the simulated runtime in {timeout:g} s", role=self.role)
            raise error from None

    def _go_wrong(self, kind: str, request: Request) -> None:
        if kind == "hang" and request.cancelled:
            raise Cancelled("cancelled while the runtime did not answer", role=self.role)
        if kind == "fail":
            raise RuntimeRefused("/generate: 500 a fault was ordered", role=self.role)
        if kind == "busy":
            raise RuntimeBusy("/generate: 503 a fault was ordered", role=self.role)

    def _abort(self, request: Request) -> None:
        self._runtime.abort(request.rid)

    async def get(self, path: str, timeout: float = INFO_SECONDS) -> dict[str, Any]:
        return {"model_path": f"simulated/{self.role}", **MARK}

    async def close(self) -> None:
        pass


def wake_exactly() -> None:
    """Asks the kernel not to put off this thread's timers (by 50 us, to save power): what a simulated runtime is late
    would count as the controller's."""
    with suppress(AttributeError, OSError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def simulated_roles(simulation: Simulation, writer: Writer | None = None) -> Mapping[str, RuntimeBackend]:
    """Backends of three simulated runtimes in this process, by role."""
    writer = writer or Writer(simulation.model)
    roles: dict[str, RuntimeBackend] = {
        role: RuntimeBackend(
            role,
            SimulatedTransport(role, simulation, writer),
            writer.words.tokenizer,
            context=CONTEXT,
            timeout=3600.0,
            seeded=True,
            max_running_requests=simulation.slots,
            token_layer="",
        )
        for role in ROLES
    }
    for backend in roles.values():
        backend.roles, backend.simulated = roles, True
    return roles
