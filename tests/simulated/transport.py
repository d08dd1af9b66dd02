"""A simulated runtime in this process: a ``Transport`` that waits on the event loop instead of
computing.
"""

import asyncio
import ctypes
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from lr_sglang.config import ROLES
from lr_sglang.engine.doubts import JudgeChecks
from lr_sglang.engine.server_facts import ServerFacts
from lr_sglang.engine.transport import INFO_SECONDS, LINE_SECONDS, Head, Post
from lr_sglang.errors import Cancelled, RuntimeBusy, RuntimeDown, RuntimeRefused, RuntimeTimeout
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.sglang_api.plugin_protocol import ROUTE, Delivery
from lr_sglang.steps.branch import Request
from tests.simulated.model import Model, Simulation, Writer
from tests.simulated.runtime import NEVER, SimulatedRuntime

CONTEXT = 2**30  # tokens; so large that no answer reaches it
_PR_SET_TIMERSLACK = 29


class SimulatedTransport(SimulatedRuntime):
    """One role's runtime, as a ``Transport`` with the route /generate only."""

    async def generate(
        self, payload: dict[str, Any], request: Request, timeout: float
    ) -> dict[str, Any]:
        """As ``Transport.generate``; configured faults raise the errors of a real transport."""
        rid = request.sending(self._abort)
        try:
            fault = self.faults.next()
            if self.faults.dead:
                raise RuntimeDown(
                    "the simulated runtime has died", role=self.role, hint="a fault was ordered"
                )
            kind = fault.kind if fault is not None else ""
            more = fault.seconds if fault and kind == "late" else NEVER if kind == "hang" else 0.0
            on_tokens = request.on_tokens if payload.get("stream") else None
            if not kind and self.steady:  # no other request changes its duration
                return await self.answer(payload, rid, on_tokens=on_tokens)
            async with asyncio.timeout(timeout):
                answer = await self.answer(payload, rid, more, on_tokens=on_tokens)
            if kind == "hang" and request.cancelled:
                raise Cancelled("cancelled while the runtime did not answer", role=self.role)
            if kind == "fail":
                raise RuntimeRefused("/generate: 500 a fault was ordered", role=self.role)
            if kind == "busy":
                raise RuntimeBusy("/generate: 503 a fault was ordered", role=self.role)
            return {"text": "garbage"} if kind == "garbage" else answer
        except TimeoutError:
            error = RuntimeTimeout(
                f"no answer from the simulated runtime in {timeout:g} s", role=self.role
            )
            raise error from None
        except asyncio.CancelledError:
            request.raise_if_closed(self.role)
            raise
        finally:
            request.end()

    def _abort(self, request: Request) -> None:
        self.abort(request.rid)

    async def get(self, path: str, timeout: float = INFO_SECONDS) -> dict[str, Any]:
        if self.faults.dead:
            raise RuntimeDown("the simulated runtime has died", role=self.role)
        return {"model_path": f"simulated/{self.role}"}

    async def post(
        self, path: str, body: dict[str, Any], timeout: float = INFO_SECONDS
    ) -> dict[str, Any]:
        self._has_no(path)

    async def deliver(
        self, deliveries: Sequence[Delivery], timeout: float = LINE_SECONDS
    ) -> Sequence[tuple[str, str]]:
        self._has_no(ROUTE)

    async def forward(
        self, post: Post, request: Request, timeout: float
    ) -> AsyncGenerator[Head | bytes, None]:
        self._has_no(post.path)
        yield b""

    def _has_no(self, path: str) -> NoReturn:
        raise RuntimeRefused(f"{path}: a simulated runtime has no such route", role=self.role)

    async def close(self) -> None:
        pass


class Unchecked(JudgeChecks):
    """Lets a simulated judge be trusted without checks, which would take time on its runtime."""

    def of(self, verifier: str) -> None:
        return None


def wake_exactly() -> None:
    """Sets the timer slack of this thread to the minimum: the default of 50 us delays simulated
    runtimes, which would count as time of the controller."""
    with suppress(AttributeError, OSError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def backends(
    servers: Mapping[str, tuple[SimulatedTransport, ServerFacts]],
) -> dict[str, RuntimeBackend]:
    """Backends of simulated servers, by role, whose judge is trusted."""
    roles = dict[str, RuntimeBackend]()
    for role, (transport, facts) in servers.items():
        tokenizer = transport.writer.words.tokenizer
        roles[role] = backend = RuntimeBackend(role, transport, tokenizer, facts, timeout=3600.0)
        backend.roles, backend.checks = roles, Unchecked()
    return roles


def simulated_roles(
    simulation: Simulation, writer: Writer | None = None
) -> Mapping[str, RuntimeBackend]:
    """Backends of three simulated runtimes in this process, by role."""
    writer = writer or Writer(simulation.model)
    facts = ServerFacts(
        context=CONTEXT, seeded=True, token_layer="", max_running_requests=simulation.slots
    )
    servers = {role: (SimulatedTransport(role, simulation, writer), facts) for role in ROLES}
    roles = backends(servers)
    for backend in roles.values():
        backend.readable = False
    return roles


def fast_roles(
    alpha: float = 0.7, steps: int = 12, seconds: float = 0.005, **given: Any
) -> Mapping[str, RuntimeBackend]:
    """Backends of a simulation that takes hardly any time."""
    model = Model(alpha=(alpha,), steps=steps, seed=5)
    return simulated_roles(Simulation(model, seconds, 0.2, 0.001), **given)


def heard(transport: SimulatedTransport) -> list[dict[str, Any]]:
    """The payloads that a runtime is sent from now on."""
    sent, generate = list[dict[str, Any]](), transport.generate

    def noted(payload: dict[str, Any], *more: Any) -> Any:
        sent.append(payload)
        return generate(payload, *more)

    transport.generate = noted  # type: ignore[method-assign]
    return sent
