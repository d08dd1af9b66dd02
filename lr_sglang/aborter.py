"""Cancelling that reaches the server, however late or deaf it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lr_sglang.errors import LookaheadError

if TYPE_CHECKING:
    from lr_sglang.call import Call

# An abort can overtake its request, and the server then ignores it: it is repeated until the request has ended,
# from the last of these on by breaking the connection too.
ABORT_AGAIN_SECONDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class Aborter:
    """Posts aborts from its own thread, again and again until the request has ended; at last it hangs up.

    Args:
        post: tells the server.
        alone: whether no other server could take an abort instead of one that takes none.

    Attributes:
        deaf: the server took no abort when it was last told one.
    """

    def __init__(self, post: Callable[[Call], None], alone: Callable[[], bool] = lambda: True) -> None:
        self._post, self._alone = post, alone
        self.deaf = False
        self._pending: list[tuple[float, int, Call]] = []  # due, attempt, call
        self._changed = threading.Condition()
        self._open = True
        self._thread: threading.Thread | None = None

    def add(self, call: Call) -> None:
        """Starts cancelling a call that was sent. Never blocks."""
        with self._changed:
            self._pending.append((time.monotonic(), 0, call))
            if self._thread is None:  # it ends when it is closed and has nothing left to do
                self._thread = threading.Thread(target=self._work, name="lr-abort", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._pending = [p for p in self._pending if not p[2].ended]
                now = time.monotonic()
                due = [p for p in self._pending if p[0] <= now]
                if not due:
                    if not self._open and not self._pending:
                        self._thread = None
                        return
                    self._changed.wait(min((p[0] for p in self._pending), default=now + 3600.0) - now)
                    continue
                self._pending = [p for p in self._pending if p[0] > now]
            self._abort([(attempt, call) for _, attempt, call in due])

    def _abort(self, due: list[tuple[int, Call]]) -> None:
        tell = True
        for attempt, call in due:
            if call.ended:
                continue
            try:
                if tell:
                    self._post(call)
                    self.deaf = False
            except LookaheadError:
                tell, self.deaf = False, True
            again = min(attempt + 1, len(ABORT_AGAIN_SECONDS) - 1)
            # A server that takes no abort notices a closed socket.
            if again == attempt or (not tell and self._alone()):
                call.hang_up()
            with self._changed:
                self._pending.append((time.monotonic() + ABORT_AGAIN_SECONDS[again], again, call))
