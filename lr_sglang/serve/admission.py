"""Which requests are answered now, which wait, and which are refused. Everything here runs in the
event loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

from lr_sglang.serve.errors import refusal
from lr_sglang.serve.processes.board import Board, Column

LONGEST_AGAIN = 60


class Admission:
    """A bounded queue, first come first served, before a number of places. All processes of an
    endpoint share both.

    Args:
        places: answers at a time.
        queue: requests that may wait.
        board: where each process writes how many it uses; None for a single process.
    """

    def __init__(self, places: int, queue: int, board: Board | None = None) -> None:
        self._places, self._queue, self._board = places, queue, board or Board()
        self._waiting: deque[tuple[float, asyncio.Future[None]]] = deque()  # with times of arrival
        self._seconds = 1.0  # of an answer, on average
        self.running, self.closed = 0, False

    @property
    def waiting(self) -> int:
        """Requests of this process in the queue."""
        return len(self._waiting)

    def check(self) -> None:
        """Raises ``Refusal`` if the queue is full, or the endpoint is shutting down."""
        if self.closed:
            raise refusal("shutting_down")
        waiting = self._all(Column.WAITING)
        if (waiting or self._all(Column.RUNNING) >= self._places) and waiting >= self._queue:
            raise refusal("queue_full", again=self._again())

    async def enter(self) -> None:
        """Waits for a place, which ``leave`` gives back; raises as ``check``."""
        turn = asyncio.get_running_loop().create_future()
        with self._board.locked():
            self.check()
            self._waiting.append((time.monotonic(), turn))
            self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()  # it was admitted at the moment of its cancellation
            else:
                self.look()
            raise

    def leave(self, seconds: float | None = None) -> None:
        """Frees a place, after ``seconds`` of work."""
        if seconds is not None:
            self._seconds += (seconds - self._seconds) / 8
        self.running -= 1
        self.look()

    def look(self) -> None:
        """Admits waiting requests to places that other processes have given back."""
        with self._board.locked():
            self._admit()

    def close(self) -> None:
        """Refuses all further requests, and those that wait."""
        self.closed = True
        for _, turn in self._waiting:
            if not turn.done():
                turn.set_exception(refusal("shutting_down"))
        self.look()

    def _admit(self) -> None:
        """Decides under the board's lock which requests of this process run."""
        self._tell()
        while self._waiting and (self._waiting[0][1].done() or self._first()):
            _, turn = self._waiting.popleft()
            if not turn.done():
                self.running += 1
                self._tell()
                turn.set_result(None)
        self._waiting = deque(one for one in self._waiting if not one[1].done())
        self._tell()

    def _tell(self) -> None:
        self._board.write(Column.RUNNING, self.running)
        self._board.write(Column.WAITING, len(self._waiting))
        self._board.write(Column.OLDEST, self._waiting[0][0] if self._waiting else 0.0)

    def _first(self) -> bool:
        """Whether there is a place, and no request of another process has waited longer than our
        first.
        """
        if self._all(Column.RUNNING) >= self._places:
            return False
        return self._board.processes == 1 or all(
            not since or self._waiting[0][0] <= since for since in self._board.others(Column.OLDEST)
        )

    def _all(self, column: Column) -> float:
        return sum(self._board.column(column))

    def _again(self) -> int:
        """Seconds after which a client that was refused may find the queue shorter."""
        seconds = self._seconds * (1 + self._all(Column.WAITING)) / self._places
        return min(LONGEST_AGAIN, max(1, math.ceil(seconds)))
