"""The health of the runtimes. Requests to one that is down fail at once, so that draft and judge
delay nobody while they are away.

Each is asked again and again for ``/model_info``, which a busy runtime answers too. It is down
when its connection is refused, or when it is silent for ``POLL_LIMITS``. A scheduler that hangs
behind an HTTP process that answers is ended by SGLang's own ``--watchdog-timeout``.

``/health`` is not asked: SGLang generates a token for it, behind all that it computes, and calls
itself unhealthy when that takes long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, Literal

from lr_sglang.algorithm.judging import PATIENCE
from lr_sglang.engine.tokenizer import Tokenizer
from lr_sglang.engine.transport import Head, Post, Transport
from lr_sglang.errors import (
    BadReply,
    Cancelled,
    LookaheadError,
    RuntimeDown,
    RuntimeRefused,
    RuntimeTimeout,
)
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.runtimes.attach import check_tokens
from lr_sglang.serve.monitoring import log, where
from lr_sglang.serve.settings import Service
from lr_sglang.steps.branch import Request
from lr_sglang.verifiers import verifier_registry

POLL_SECONDS = 0.5  # between two polls of a runtime
# Seconds of a poll, and how many in a row may be late. An answer waits for a draft or a judge that
# hangs no longer than for these; without the target there is no answer, so it has more time.
POLL_LIMITS = {"target": (2.0, 3), "draft": (0.7, 2), "judge": (0.7, 2)}
DEGRADED_SECONDS = 60.0  # that draft or judge is down until the log says it again, as an alert does

Changed = Callable[[str, str], None]


class RuntimeAway(RuntimeDown):
    """A runtime that is known to be down. A caller need not back off: it is asked again when it is
    back.
    """

    retryable = False


class Watch:
    """A runtime's ``Transport``, and whether the runtime answers.

    Args:
        inner: the transport.
        tokenizer: of its model; a runtime that comes back with another one stays down.
        changed: called when the runtime goes down (with the reason) and when it is back (with an
            empty one).

    Attributes:
        down: the reason; empty while it answers.
        useless: why requests fail at once though it answers; empty as a rule.
        since: the last change of ``down``, in seconds of the monotonic clock.
    """

    def __init__(
        self, role: str, inner: Transport, tokenizer: Tokenizer | None, changed: Changed
    ) -> None:
        self.role = role
        self.inner = inner
        self.down = self.useless = ""
        self.since = time.monotonic()
        self._tokenizer = tokenizer
        self._changed = changed
        self._before = 0.0
        self._late = 0
        self._told = False
        self._open: set[Request] = set()  # in flight, without those that were given up

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def generate(
        self, payload: dict[str, Any], request: Request, timeout: float
    ) -> dict[str, Any]:
        """As ``Transport.generate``; raises ``RuntimeAway`` while the runtime is down, and when it
        goes down meanwhile.
        """
        with self._counted(request):
            return await self.inner.generate(payload, request, timeout)

    async def forward(
        self, post: Post, request: Request, timeout: float
    ) -> AsyncGenerator[Head | bytes, None]:
        """As ``generate``."""
        with self._counted(request):
            async with aclosing(self.inner.forward(post, request, timeout)) as pieces:
                async for piece in pieces:
                    yield piece

    @contextmanager
    def _counted(self, request: Request) -> Iterator[None]:
        if self.down or self.useless:
            raise self._away()
        self._open.add(request)
        try:
            yield
        except (RuntimeDown, RuntimeTimeout, Cancelled) as error:
            if request not in self._open:  # it was given up
                raise self._away() from error
            raise
        finally:
            self._open.discard(request)

    def up(self) -> float:
        """1.0 while it answers, else 0.0."""
        return float(not self.down)

    def running(self) -> int:
        """Requests in flight."""
        return len(self._open)

    def total(self) -> float:
        """Seconds that it has been down, in all."""
        return self._before + (time.monotonic() - self.since if self.down else 0.0)

    async def run(self) -> None:
        """Polls the runtime until it is cancelled."""
        while True:
            try:
                await self.poll()
                self._tell_if_long()
            except Exception as error:  # noqa: BLE001 - a watch must not end by an error
                log("internal error", logging.ERROR, error=type(error).__name__, where=where(error))
            if not self._late:
                await asyncio.sleep(POLL_SECONDS)

    async def poll(self) -> None:
        """Asks once, and sets the state."""
        seconds, most = POLL_LIMITS.get(self.role, POLL_LIMITS["target"])
        try:
            await self._ask(seconds)
        except RuntimeTimeout:
            self._late = min(self._late + 1, most)
            if self._late == most:
                self._set("it does not answer")
        except LookaheadError as error:
            self._late = 0
            self._set(error.message)
        else:
            self._late = 0
            self._set("")

    def _tell_if_long(self) -> None:
        """Logs once that draft or judge has been down for ``DEGRADED_SECONDS``."""
        down = time.monotonic() - self.since if self.down else 0.0
        if self.role == "target" or down < DEGRADED_SECONDS or self._told:
            return
        self._told = True
        about = {"role": self.role, "seconds": round(down), "reason": self.down}
        log("degraded", logging.WARNING, **about)

    async def _ask(self, seconds: float) -> None:
        try:
            await self.inner.get("/model_info", seconds)
        except (
            BadReply,
            RuntimeRefused,
        ) as error:  # it answered, though a router has no such route
            if isinstance(error, RuntimeRefused) and error.status >= 500:
                raise
        if self.down and self._tokenizer is not None:
            await check_tokens(self.inner, self._tokenizer, self.role, seconds)

    def _set(self, reason: str) -> None:
        if reason == self.down:
            return
        self._before = self.total()
        self.since = time.monotonic()
        self.down = reason
        self._told = False
        if reason:  # all requests in flight are given up
            stuck = self._open
            self._open = set()
            for request in stuck:
                request.cancel()
                request.close_connection()
        self._changed(self.role, reason)

    def _away(self) -> RuntimeAway:
        return RuntimeAway(self.down or self.useless or "it does not answer", role=self.role)


class Health:
    """All roles of an endpoint. While draft or judge is down, plain decoding by the target goes on.

    Args:
        roles: the transport of each becomes a ``Watch``; requests to draft and judge get the time
            limit of the service.
    """

    def __init__(self, roles: Mapping[str, RuntimeBackend], service: Service) -> None:
        self._roles = roles
        self._trusts = service.lookahead.max_false_accepts
        # Drafts are of no use without verdicts.
        self._judged = "judge" in roles and verifier_registry.needs_judge(service.verifiers[0])
        self.watches: dict[str, Watch] = {}
        for role, backend in roles.items():
            watch = Watch(role, backend.transport, backend.tokenizer, self._tell)
            backend.transport = self.watches[role] = watch
            if role == "draft":
                backend.timeout = min(backend.timeout, service.stall)
            elif role == "judge":  # whose requests have a share of the timeout
                backend.timeout = min(backend.timeout, service.stall / PATIENCE)

    async def run(self) -> None:
        """Polls all runtimes until it is cancelled."""
        await asyncio.gather(*(watch.run() for watch in self.watches.values()))

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
        now = time.monotonic()
        found = dict[str, Any]()
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
        if role == "judge" and self._judged and "draft" in self.watches:
            self.watches["draft"].useless = reason and "no verdicts while the judge is down"
        event = "runtime down" if reason else "runtime back"
        log(event, logging.WARNING, role=role, reason=reason)
