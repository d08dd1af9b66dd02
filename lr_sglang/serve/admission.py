"""Which requests are answered now, which wait, and which are refused. Everything here runs in the
event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque

from lr_sglang.serve.errors import refusal

LONGEST_AGAIN = 60


class Admission:
    """A bounded queue, first come first served, before a number of places.

    Args:
        places: answers at a time.
        queue: requests that may wait.
    """

    def __init__(self, places: int, queue: int) -> None:
        self._places, self._queue = places, queue
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._seconds = 1.0  # of an answer, on average
        self.running, self.closed = 0, False

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    def check(self) -> None:
        """Raises ``Refusal`` if the queue is full, or the endpoint is shutting down."""
        if self.closed:
            raise refusal("shutting_down")
        if (self._waiting or self.running >= self._places) and self.waiting >= self._queue:
            raise refusal("queue_full", again=self._again())

    async def enter(self) -> None:
        """Waits for a place, which ``leave`` gives back; raises as ``check``."""
        self.check()
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()  # it was admitted at the moment of its cancellation
            else:
                self._admit()
            raise

    def leave(self, seconds: float | None = None) -> None:
        """Frees a place, after ``seconds`` of work."""
        if seconds is not None:
            self._seconds += (seconds - self._seconds) / 8
        self.running -= 1
        self._admit()

    def close(self) -> None:
        """Refuses all further requests, and those that wait."""
        self.closed = True
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(refusal("shutting_down"))
        self._admit()

    def _admit(self) -> None:
        """Gives free places to those that have waited longest."""
        self._waiting = deque(turn for turn in self._waiting if not turn.done())
        while self._waiting and self.running < self._places:
            self.running += 1
            self._waiting.popleft().set_result(None)

    def _again(self) -> int:
        """Seconds after which a client that was refused may find the queue shorter."""
        seconds = self._seconds * (1 + self.waiting) / self._places
        return min(LONGEST_AGAIN, max(1, math.ceil(seconds)))
