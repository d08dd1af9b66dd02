"""The health of the runtimes, from probes and from the results of the answers' own requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

from lr_sglang.engine.tokenizer import Tokenizer
from lr_sglang.errors import ConfigError, LookaheadError, RuntimeTimeout
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.runtimes.attach import check_tokens
from lr_sglang.serve.circuit_breaker import Gate
from lr_sglang.serve.logs import log, where
from lr_sglang.serve.settings import Service
from lr_sglang.verifiers import verifier_registry

LOOK_SECONDS = 1.0
PROBE_SECONDS = 2.0
GENERATE_SECONDS = 5.0
LATE_PROBES = 2  # in a row: a busy server can be late once
FAILURES = 3  # of requests, in a row
LONGEST_REST = 15.0

Changed = Callable[[str, str], None]


class Watch:
    """Watches one role's runtime, in a task of its own, so that a runtime that hangs delays no
    other check.

    Args:
        stall: seconds that a request may take. It holds for the target only while probes fail too,
            because a long prompt can take longer.
        changed: called when the runtime goes down (with the reason) and when it is back (with an
            empty one).
        known: the tokenizer of its model; a runtime that comes back with another one stays down.

    Attributes:
        down: the reason; empty when it is well.
        since: the last change of ``down``, in seconds of the monotonic clock.
    """

    def __init__(
        self, role: str, gate: Gate, stall: float, changed: Changed, known: Tokenizer | None = None
    ) -> None:
        self.role, self.gate, self.stall, self._changed, self._known = (
            role,
            gate,
            stall,
            changed,
            known,
        )
        self.down, self.since, self._before = "", time.monotonic(), 0.0
        self._late, self._rest, self._again = 0, LOOK_SECONDS, 0.0

    def up(self) -> float:
        return float(not self.down)

    def total(self) -> float:
        """Seconds that it has been down, in all."""
        return self._before + (time.monotonic() - self.since if self.down else 0.0)

    async def run(self) -> None:
        """Checks the runtime once a second, and at once when a request has failed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.gate.alarm.wait()
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - a watch must not end by an error
                log("internal error", logging.ERROR, error=type(error).__name__, where=where(error))
            await asyncio.sleep(0.05)  # limits the rate of checks

    async def look(self) -> None:
        now, alarmed = time.monotonic(), self.gate.alarm.is_set()
        self.gate.alarm.clear()
        if self.down:
            await self._look_whether_back(now)
        elif self.role != "target" and await self._stalls(now):
            self._set("its requests are not answered", rest=True)
            self.gate.kick()
        elif self.gate.failures >= FAILURES:
            self._set("its requests fail", rest=True)
        elif now - self.gate.answered < LOOK_SECONDS and not alarmed:
            self._late = 0
        else:
            await self._probe()

    async def _probe(self) -> None:
        try:
            await self.gate.probe("/health", PROBE_SECONDS)
            self._late = 0
        except RuntimeTimeout:
            self._late += 1
            self.gate.alarm.set()  # look again at once
            if self._late >= LATE_PROBES:
                self._set("it does not answer")
        except LookaheadError as error:
            self._set(error.message)

    async def _stalls(self, now: float) -> bool:
        """Whether requests get no reply. Those of a hanging draft end as cancelled, because the
        target overtakes it.
        """
        late = now - self.gate.oldest() > self.stall
        if now - self.gate.answered < self.stall:
            if late:
                self.gate.failures += self.gate.kick(self.stall)
            return False
        if late or self.gate.unanswered < FAILURES:
            return late
        try:
            await self.gate.try_out(GENERATE_SECONDS)
        except LookaheadError:
            return True
        return False

    async def _look_whether_back(self, now: float) -> None:
        if self.role != "target" or now - self.since > self.stall:
            self.gate.kick()
        if now < self._again:
            return
        try:
            await self.gate.probe("/health", PROBE_SECONDS)
            await self.gate.try_out(GENERATE_SECONDS)
            if self._known is not None:
                await check_tokens(self.gate, self._known, self.role, PROBE_SECONDS)
        except ConfigError as error:
            if self.down != error.message:
                self._set(error.message)
        except LookaheadError:
            pass
        else:
            self.gate.failures, self._late = (
                FAILURES - 1,
                0,
            )  # the next failure takes it down again, for longer
            self._set("")

    def _set(self, reason: str, rest: bool = False) -> None:
        """Sets the state. ``rest``: delays the next try, longer after each early failure, as its
        probes succeed.
        """
        now, before = time.monotonic(), self.total()
        if reason:
            soon = now - self.since < 2 * LONGEST_REST
            self._rest = min(LONGEST_REST, 2 * self._rest) if soon else LOOK_SECONDS
            self._again = now + (self._rest if rest else 0.0)
        self.down, self.since, self._before = reason, now, before
        self._changed(self.role, reason)


class Health:
    """All roles of an endpoint. While draft or judge is down, plain decoding by the target goes on.

    Args:
        roles: their transports get a gate in front.
        changed: as for ``Watch``.
    """

    def __init__(
        self,
        roles: Mapping[str, RuntimeBackend],
        service: Service,
        changed: Changed = lambda role, why: None,
    ) -> None:
        self.gates: dict[str, Gate] = {}
        for role, backend in roles.items():
            backend.transport = self.gates[role] = Gate(backend.transport, role)
        self.watches = {
            role: Watch(
                role,
                self.gates[role],
                service.stall,
                self._tell,
                getattr(backend, "tokenizer", None),
            )
            for role, backend in roles.items()
        }
        # Drafts are of no use without verdicts.
        self._judged = "judge" in roles and verifier_registry.needs_judge(service.verifiers[0])
        self._roles, self._trusts, self._changed = (
            roles,
            service.lookahead.max_false_accepts,
            changed,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(watch.run()) for watch in self.watches.values()]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def state(self) -> Literal["ready", "degraded", "down"]:
        """The state of the endpoint."""
        if self.watches["target"].down:
            return "down"
        return "degraded" if any(watch.down for watch in self.watches.values()) else "ready"

    def disturbed(self, began: float) -> bool:
        """Whether draft or judge has been down at any time since then (in seconds of the monotonic
        clock).
        """
        others = (watch for role, watch in self.watches.items() if role != "target")
        return any(watch.down or watch.since > began for watch in others)

    def report(self) -> dict[str, Any]:
        """State and reason of every role, and what is known of the judge."""
        now, found = time.monotonic(), dict[str, Any]()
        for role, watch in self.watches.items():
            found[role] = {
                "status": "down" if watch.down else "up",
                "seconds": round(now - watch.since, 1),
            }
            if why := watch.down:  # a runtime's own message may hold internal addresses
                found[role]["reason"] = (
                    why if why.startswith("it") else "it cannot be reached, or is not well"
                )
        if "judge" in found and (known := self._roles["judge"].checks.worst()) is not None:
            found["judge"]["false_accepts"] = known.to_dict() | {
                "trusted": known.surely <= self._trusts
            }
        return found

    def _tell(self, role: str, reason: str) -> None:
        down = {name: watch.down for name, watch in self.watches.items()}
        if "draft" in self.gates and self._judged and down["judge"]:
            down["draft"] = down["draft"] or "no verdicts while the judge is down"
        for name, gate in self.gates.items():
            gate.shut = down[name]
        self._changed(role, reason)
