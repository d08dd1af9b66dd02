"""A circuit breaker in front of a runtime's transport: while the runtime is down, its requests fail
at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from lr_sglang.engine.refusal import WorkerLost
from lr_sglang.engine.request import Request
from lr_sglang.engine.transport import Head, Post, Transport
from lr_sglang.errors import (
    BadReply,
    Cancelled,
    PromptTooLong,
    RuntimeBusy,
    RuntimeDown,
    RuntimeRefused,
    RuntimeTimeout,
)


class RuntimeAway(RuntimeDown):
    """A runtime that is known to be down. A caller need not back off: the gate opens when it is
    back.
    """

    retryable = False


class Gate:
    """A ``Transport`` that counts the results of a runtime's requests. While it is shut, requests
    fail at once.

    Attributes:
        calls: requests so far.
        shut: the reason; empty while it is open.
        failures: failed requests in a row. answered: time of the last success, by the monotonic
            clock.
        unanswered: requests that were cancelled before their reply came, since the last success.
        alarm: set when a request could not reach the runtime.
    """

    def __init__(self, inner: Transport, role: str) -> None:
        self.inner, self.role = inner, role
        self.shut, self.calls = "", 0
        self.failures, self.unanswered, self.answered = 0, 0, time.monotonic()
        self.alarm = asyncio.Event()
        self._open: dict[
            Request, float
        ] = {}  # start of each request in flight, without those that ``kick`` gave up

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def generate(
        self, payload: dict[str, Any], request: Request, timeout: float
    ) -> dict[str, Any]:
        """As ``Transport.generate``; raises ``RuntimeAway`` while the gate is shut, or when it
        shuts meanwhile.
        """
        with self._counted(request):
            reply = await self.inner.generate(payload, request, timeout)
            self._note(_is_generation(reply, request.cancelled))
            return reply

    async def forward(
        self, post: Post, request: Request, timeout: float
    ) -> AsyncGenerator[Head | bytes, None]:
        """As ``generate``. An error status is not counted as a failure, because the request can be
        its cause.
        """
        with self._counted(request):
            async with aclosing(self.inner.forward(post, request, timeout)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Head):
                        if piece.status < 500:
                            self._note(True)
                        else:
                            self.alarm.set()
                    yield piece

    @contextmanager
    def _counted(self, request: Request) -> Iterator[None]:
        """Counts a request while it is in flight, and its result."""
        if self.shut:
            raise self._away()
        self.calls += 1
        self._open[request] = time.monotonic()
        try:
            yield
            if request not in self._open:
                raise self._away()
        except RuntimeAway:
            raise
        except (RuntimeDown, RuntimeTimeout) as error:
            self._note(False)
            self.alarm.set()
            error.retryable = (
                False  # a verifier would back off for up to a minute, in place of the gate
            )
            if request not in self._open:
                raise self._away() from error
            raise
        except Cancelled:
            if request not in self._open:
                raise self._away() from None
            self.unanswered += 1
            raise
        except (RuntimeRefused, BadReply) as error:
            well = _is_well(error)
            if well is not None:
                self._note(well)
            error.retryable = error.retryable and well is not False
            raise
        finally:
            self._open.pop(request, None)

    async def probe(self, path: str, timeout: float) -> None:
        """Asks whether the runtime is well; raises ``LookaheadError`` if it is not."""
        try:
            await self.inner.get(path, timeout)
        except BadReply:
            return  # it answered, though not in JSON
        except RuntimeRefused as error:
            if error.status != 404:
                raise

    async def try_out(self, timeout: float) -> None:
        """Generates a token, also while the gate is shut; raises ``LookaheadError`` if
        that fails.
        """
        payload = {
            "input_ids": [1, 2, 3],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        }
        if not _is_generation(await self.inner.generate(payload, Request(), timeout)):
            raise BadReply("its replies are not generations", role=self.role)
        self.unanswered, self.answered = 0, time.monotonic()

    def running(self) -> int:
        return len(self._open)

    def oldest(self) -> float:
        """The start of the oldest request in flight; the present time if there is none."""
        return min(self._open.values(), default=time.monotonic())

    def kick(self, older: float = 0.0) -> int:
        """Gives up the requests that have taken ``older`` seconds or more; returns their number."""
        now = time.monotonic()
        stuck = [request for request, began in self._open.items() if now - began >= older]
        for request in stuck:
            del self._open[request]
            request.cancel()
            request.close_connection()
        return len(stuck)

    def _note(self, well: bool) -> None:
        if well:
            self.failures, self.unanswered, self.answered = 0, 0, time.monotonic()
        else:
            self.failures += 1

    def _away(self) -> RuntimeAway:
        return RuntimeAway(self.shut or "it did not answer in time", role=self.role)


def _is_well(error: RuntimeRefused | BadReply) -> bool | None:
    """Whether a runtime that refused a request is well; None where only a probe can say.

    A runtime that is busy, or finds a request wrong or too long, is well. 502 to 504 can be a
    router without workers.
    """
    if isinstance(error, BadReply | WorkerLost):
        return False
    if isinstance(error, PromptTooLong) or 400 <= error.status < 500:
        return True
    return None if isinstance(error, RuntimeBusy) else False


def _is_generation(reply: Any, aborted: bool = False) -> bool:
    """Whether a reply is a generation, complete or cut by our own abort."""
    try:
        finish, ids = reply["meta_info"]["finish_reason"], list(reply["output_ids"])
        kind, matched = finish["type"], finish.get("matched")
    except (KeyError, TypeError, AttributeError):
        return False
    cut = (
        kind == "stop" and isinstance(matched, int) and ids[-1:] != [matched]
    )  # the token that ended it is missing
    whole = set(map(type, ids)) <= {int} and min(ids, default=0) >= 0
    return whole and not cut and (kind != "abort" or aborted)
