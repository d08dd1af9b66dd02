"""One request in flight: its id, its seed, and how to cancel it."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

from lr_sglang.errors import Cancelled

# Request ids are unique and of one length: SGLang aborts by prefix, so none may begin with another.
_PROCESS, _numbers = uuid.uuid4().hex[:12], itertools.count()


class Request:
    """One generation asked of a runtime. Belongs to its event loop.

    Args:
        seed: for the runtime's sampler; None leaves the draw to the runtime.
        key: requests of one key share a prefix: a router keeps them on one worker. ASCII, empty for none.
        order: the waiting request with the least order gets the next slot of the runtime.

    Attributes:
        patience: share of the runtime's timeout that the request may take.
        sent: when it was sent, by the clock of ``time.time``; 0 before that.
        cancelled: whether ``cancel`` was called.
        ended: the runtime has answered, or never will; False again when it is sent to another worker.
        result: the ``Generation``, or the ``LookaheadError`` in place of it.
    """

    def __init__(self, seed: int | None = None, key: str = "", order: int = 0) -> None:
        self.seed, self.key, self.order, self.patience = seed, key, order, 1.0
        self.sent, self.rid = 0.0, ""
        self.cancelled = self.ended = self.connection_closed = False
        self.result: Any = None
        self._abort: Callable[[Request], None] | None = None
        self._task: asyncio.Task[Any] | None = None

    def sending(self, abort: Callable[[Request], None]) -> str:
        """A new request id, right before sending.

        Args:
            abort: how to stop it on the server.

        Raises:
            Cancelled: it was cancelled before it was sent.
        """
        if self.cancelled:
            raise Cancelled("cancelled before it was sent")
        self.sent, self._abort, self._task, self.ended = time.time(), abort, asyncio.current_task(), False
        self.rid = f"{_PROCESS}{os.getpid():08x}{next(_numbers):012x}"
        return self.rid

    def on_cancel(self, stop: Callable[[Request], None]) -> None:
        """Sets the function that ``cancel`` calls before the request is sent."""
        self._abort = stop

    def part(self) -> Request:
        """A request of several that make one; cancelling ``self`` cancels the one that is under way.

        Raises:
            Cancelled: it was cancelled already.
        """
        if self.cancelled:
            raise Cancelled("cancelled before it was sent")
        made = Request(self.seed, self.key, self.order)
        made.patience = self.patience
        self._abort = lambda _: made.cancel()
        return made

    def end(self) -> None:
        """The runtime has answered, or never will: nothing is left to abort."""
        self.ended, self._abort, self._task = True, None, None

    def cancel(self) -> None:
        """Stops the generation on the server. ``Cancelled`` is raised where it was asked for, once it has stopped."""
        if self.cancelled or self.ended:
            return
        self.cancelled = True
        if self._abort is not None:
            self._abort(self)

    def raise_if_closed(self, role: str) -> None:
        """Called where a request's task was cancelled: after ``close_connection`` only the request ends, not the task.

        Raises:
            Cancelled: its connection was closed.
        """
        if self.connection_closed:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            raise Cancelled("connection closed", role=role) from None

    def close_connection(self) -> None:
        """Closes the connection, for a server that refuses the abort."""
        if self._task is not None and not self.ended:
            self.connection_closed = True
            self._task.cancel()
