"""One request in flight: its id, its seed, and how to cancel it."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from lr_sglang.errors import Cancelled

# Request ids are unique and of one length. A uuid for each would let go of the interpreter's lock every time.
_PROCESS, _numbers = uuid.uuid4().hex[:12], itertools.count()
# Held while a pooled connection goes from one call to the next, so that no call breaks another's.
changing_hands = threading.Lock()


class Call:
    """One request in flight: made by whoever waits for it, sent by a branch's thread, cancelled from anywhere.

    Args:
        seed: for the runtime's sampler; None leaves the draw to the runtime.
        priority: higher goes first where the runtime schedules by priority.
        done: called once, in the branch's thread, with the result or the error.
        key: requests of one key share a prefix: a router keeps them on one worker. ASCII, empty for none.

    Attributes:
        patience: share of the runtime's timeout that it may take.
        sent: when it was sent, by the clock of ``time.time``.
    """

    def __init__(
        self,
        seed: int | None = None,
        priority: int | None = None,
        done: Callable[[Any], None] | None = None,
        key: str = "",
    ) -> None:
        self.seed = seed
        self.priority = priority
        self.key = key
        self.patience = 1.0
        self.sent = 0.0
        self.rid = ""
        self.cancelled = self._aborted = False
        self.result: Any = None
        self.ended = False
        self._done = done
        self._abort: Callable[[Call], None] | None = None
        self._connection: Any = None
        self._held: threading.Lock | None = None
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Call:
        return self  # SGLang deep-copies sampling parameters; a call stays the one that is being waited for

    def sending(self, abort: Callable[[Call], None]) -> str:
        """A new request id, right before sending (SGLang aborts by prefix: so never one inside another).

        Raises:
            Cancelled: nobody wants the answer any more.
        """
        held = self._held
        if held is not None:
            held.acquire()
        with self._lock:
            if self.cancelled:
                raise Cancelled("cancelled before it was sent")
            self.sent = time.time()
            self.rid, self._abort = f"{_PROCESS}{os.getpid():08x}{next(_numbers):012x}", abort
            return self.rid

    def hold(self) -> None:
        """Who sends it is to wait, once all is ready, until it is released."""
        self._held = threading.Lock()
        self._held.acquire()

    def release(self) -> None:
        """It may be sent."""
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def cancel(self) -> None:
        """Stops the generation on the server, soon; ``ended`` is true when it has. Never blocks."""
        with self._lock:
            if self._aborted or self.ended:
                return
            self.cancelled = self._aborted = True
            abort = self._abort
        self.release()
        if abort is not None:
            abort(self)

    def end(self, result: Any) -> None:
        """The request has its result (or its error)."""
        self.result = result
        self.ended = True
        done, self._done = self._done, None  # who hears of it knows the call too: no circle is left
        if done is not None:
            done(result)

    def hang_up(self) -> None:
        """Breaks the connection, for a server that answers no abort."""
        with changing_hands:
            sock = getattr(self._connection, "sock", None)
            if sock is not None and self._connection.call is self:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    return  # it was closed already
