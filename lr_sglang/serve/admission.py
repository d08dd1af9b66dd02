"""Who is answered now, who waits, and who is sent away. Everything here runs in the event loop."""

from __future__ import annotations

import asyncio
import math
from collections import deque

from lr_sglang.serve.errors import full, stopping

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
        """Whether one could enter now.

        Raises:
            Refusal: the queue is full, or nobody is admitted any more.
        """
        if self.closed:
            raise stopping()
        if not self._free() and len(self._waiting) >= self._queue:
            raise full(self._again())

    async def enter(self) -> None:
        """Returns when there is a place; ``leave`` gives it back.

        Raises:
            Refusal: as ``check``.
        """
        self.check()
        if self._free():
            self.running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()  # it was our turn just when we gave up
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def leave(self, seconds: float | None = None) -> None:
        """A place is free again, after so many seconds of work."""
        if seconds is not None:
            self._seconds += (seconds - self._seconds) / 8
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1

    def close(self) -> None:
        """Nobody is admitted any more, those who wait included."""
        self.closed = True
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(stopping())

    def _free(self) -> bool:
        return self.running < self._places and not self._waiting

    def _again(self) -> int:
        """Seconds after which somebody who is sent away may find the queue shorter."""
        return min(LONGEST_AGAIN, max(1, math.ceil(self._seconds * (1 + len(self._waiting)) / self._places)))
