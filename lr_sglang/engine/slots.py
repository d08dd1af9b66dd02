"""The slots of one runtime, shared by all requests of this process to it.

Requests wait here rather than in the runtime's own queue, so that a branch that is no longer needed
is cancelled at no cost, and the most urgent request is sent first.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools

from lr_sglang.errors import Cancelled
from lr_sglang.steps.branch import Request


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
