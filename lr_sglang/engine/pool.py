"""The slots of one runtime, shared by all requests of this process to it.

Requests wait here rather than in the runtime's own queue, so that a speculative branch that is no longer needed is
dropped at no cost, and the most urgent request goes first.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools

from lr_sglang.engine.request import Request
from lr_sglang.errors import Cancelled


class Pool:
    """Gives out slots, the most urgent request first, then in order of arrival. Belongs to one event loop.

    Args:
        size: requests that the runtime runs at a time; None is no limit. It may change.
    """

    def __init__(self, size: int | None = None) -> None:
        self._size, self.running = size, 0
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._ready: dict[Request, asyncio.Future[None]] = {}
        self._numbers = itertools.count()

    @property
    def size(self) -> int | None:
        """Requests that may run at a time."""
        return self._size

    @size.setter
    def size(self, size: int | None) -> None:
        self._size = size
        self._admit()

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._ready)

    def free(self) -> bool:
        """Whether a request would begin at once."""
        return self._size is None or self.running < self._size

    async def enter(self, request: Request, order: int = 0) -> None:
        """Waits for a slot; ``leave`` gives it back.

        Args:
            order: the least goes first; ``reorder`` changes it.

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
                self.leave()  # it had its slot already
            raise
        finally:
            del self._ready[request]

    def reorder(self, request: Request, order: int) -> None:
        """Changes the order of a waiting request; no effect on one that is not waiting."""
        ready = self._ready.get(request)
        if ready is not None and not ready.done():
            heapq.heappush(self._heap, (order, next(self._numbers), ready))

    def leave(self) -> None:
        """A slot is free again."""
        self.running -= 1
        self._admit()

    def _forget(self, request: Request) -> None:
        ready = self._ready.get(request)
        if ready is not None and not ready.done():  # else it has its slot and is not sent yet, or waits no more
            ready.set_exception(Cancelled("cancelled before it was sent"))

    def _admit(self) -> None:
        while self._heap and self.free():
            _, _, ready = heapq.heappop(self._heap)
            if not ready.done():  # else it was cancelled, or is listed twice after a reorder
                self.running += 1
                ready.set_result(None)
