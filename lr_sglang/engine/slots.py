"""What waits here for one runtime: requests for a slot, and lines for a message.

Requests wait here rather than in the runtime's own queue, so that a branch that is no longer needed
is cancelled at no cost, and the most urgent request is sent first. Lines are what a draft writes
ahead of requests that run on a target's server, for its token layer ``fed``
(docs/token-layer.md).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from lr_sglang.errors import Cancelled, LookaheadError
from lr_sglang.sglang_api.plugin_protocol import Delivery
from lr_sglang.steps.branch import Request

REST_SECONDS = 1.0  # after a message that failed


class Slots:
    """Assigns slots to requests by urgency, then in order of arrival. Belongs to one event loop.

    Args:
        size: requests that the runtime runs at a time; None for no limit.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = size
        self.running = 0
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._ready: dict[Request, asyncio.Future[None]] = {}
        self._numbers = itertools.count()

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._ready)

    def free(self) -> bool:
        """Whether a request would begin at once."""
        return self.size is None or self.running < self.size

    async def enter(self, request: Request, order: int = 0) -> None:
        """Waits for a slot; ``leave`` gives it back.

        Args:
            order: the request with the lowest gets the next slot; ``reorder`` changes it.

        Raises:
            Cancelled: the request was cancelled while it waited.
        """
        if request.cancelled:
            raise Cancelled("cancelled before it was sent")
        if self.free():
            self.running += 1
            return
        ready = self._ready[request] = asyncio.get_running_loop().create_future()
        request.on_cancel(self._forget)
        self.reorder(request, order)
        try:
            await ready
        except BaseException:
            if ready.done() and not ready.cancelled() and not ready.exception():
                self.leave()  # the task was cancelled after the request had got its slot
            raise
        finally:
            del self._ready[request]

    def reorder(self, request: Request, order: int) -> None:
        """Changes the order of a request; no effect if it does not wait."""
        ready = self._ready.get(request)
        if ready is not None and not ready.done():
            heapq.heappush(self._heap, (order, next(self._numbers), ready))
            # under lasting load, cancelled ones never come to the top
            if len(self._heap) > 64 + 8 * len(self._ready):
                self._heap = sorted(entry for entry in self._heap if not entry[2].done())

    def leave(self) -> None:
        """Returns a slot."""
        self.running -= 1
        self._admit()

    def _forget(self, request: Request) -> None:
        ready = self._ready.get(request)
        if ready is not None and not ready.done():  # otherwise it has a slot, or no longer waits
            ready.set_exception(Cancelled("cancelled before it was sent"))

    def _admit(self) -> None:
        while self._heap and self.free():
            _, _, ready = heapq.heappop(self._heap)
            # one that is done was cancelled, or has a slot and an entry from before a reorder
            if not ready.done():
                self.running += 1
                ready.set_result(None)


class LineSender:
    """Delivers lines to one server: what is new in a turn of the event loop is one message, and a
    message waits for the answer to the one before it, so that none overtakes another.

    A message that fails is not sent again: a line costs speed only, and its owner sees that its
    tokens were not taken.

    Args:
        deliver: sends one message.

    Attributes:
        failed: number of messages that failed.
    """

    def __init__(self, deliver: Callable[[list[Delivery]], Awaitable[Any]]) -> None:
        self._deliver = deliver
        self._waiting: dict[str, tuple[int, list[int]]] = {}
        self._task: asyncio.Task[None] | None = None
        self.failed = 0

    def put(self, rid: str, place: int, ids: list[int]) -> None:
        """From ``place`` on, the line of a request is ``ids``; call it on the loop."""
        first, before = self._waiting.get(rid, (place, []))
        if first <= place <= first + len(before):
            ids = before[: place - first] + ids
            place = first
        self._waiting[rid] = place, ids
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send())

    def drop(self, rid: str) -> None:
        """Forgets what was not sent yet of a request that has ended."""
        self._waiting.pop(rid, None)

    async def _send(self) -> None:
        try:
            await asyncio.sleep(0)  # the others of this turn
            while self._waiting:
                deliveries = [Delivery(rid, *part) for rid, part in self._waiting.items()]
                self._waiting = {}
                try:
                    await self._deliver(deliveries)
                except LookaheadError:
                    self.failed += 1
                    await asyncio.sleep(REST_SECONDS)
        finally:
            self._task = None
