"""One request for a generation, in flight: its id, its seed, and how to cancel it."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

from lr_sglang.errors import Cancelled

STREAM_TOKENS = 4  # tokens between two events of a stream, after the first token
# Request ids are unique and have the same length: SGLang aborts by prefix, so no id may be the
# prefix of another.
_PROCESS = uuid.uuid4().hex[:12]
_numbers = itertools.count()


class Request:
    """A request for one generation. Belongs to one event loop.

    Args:
        seed: for the runtime's sampler; None for a random one.
        place: the next draw's number: of the tokens at the end of the prompt, so many were drawn
            with this seed. They are the answer's, or, where each step has a seed of its own, the
            step's.
        key: a router sends requests with the same key, which share a prefix, to one worker. ASCII;
            empty for none.
        order: the waiting request with the lowest order gets the next slot of the runtime.

    Attributes:
        patience: share of the runtime's timeout that the request may take.
        on_tokens: called on the event loop with all ids generated so far, again and again while
            the runtime generates; None asks for the whole reply only. The list may grow afterwards.
        stream_interval: tokens between two such calls, after the first token; a pass that gives
            more is one call.
        increments: whether the server's events have new tokens only.
        sent: when it was sent (``time.time``); 0 before.
        cancelled: whether ``cancel`` was called.
        unheard: whether the server took no abort of it, so that its connection was closed.
        done: whether it was answered or has failed; False again after it is sent to another
            worker.
        result: the ``Generation``, or the ``LookaheadError`` that was raised.
    """

    def __init__(
        self, seed: int | None = None, key: str = "", order: int = 0, place: int = 0
    ) -> None:
        self.seed = seed
        self.place = place
        self.key = key
        self.order = order
        self.patience = 1.0
        self.on_tokens: Callable[[list[int]], None] | None = None
        self.stream_interval = STREAM_TOKENS
        self.increments = False
        self.sent = 0.0
        self.rid = ""
        self.cancelled = self.done = self.connection_closed = self.unheard = False
        self.result: Any = None
        self._abort: Callable[[Request], None] | None = None
        self._task: asyncio.Task[Any] | None = None

    def sending(self, abort: Callable[[Request], None]) -> str:
        """Gives the request a new id, and notes how to abort it; call it right before sending.

        Args:
            abort: aborts the request on the server.

        Raises:
            Cancelled: it was cancelled before it was sent.
        """
        if self.cancelled:
            raise Cancelled("cancelled before it was sent")
        self.sent = time.time()
        self.done = False
        self._abort = abort
        self._task = asyncio.current_task()
        self.rid = f"{_PROCESS}{os.getpid():08x}{next(_numbers):012x}"
        return self.rid

    def on_cancel(self, stop: Callable[[Request], None]) -> None:
        """Sets the function that ``cancel`` calls before the request is sent."""
        self._abort = stop

    def part(self) -> Request:
        """A new request that is part of this one: cancelling this one cancels its latest part.

        Raises:
            Cancelled: this request was cancelled before.
        """
        if self.cancelled:
            raise Cancelled("cancelled before it was sent")
        made = Request(self.seed, self.key, self.order, self.place)
        made.patience = self.patience
        self._abort = lambda _: made.cancel()
        return made

    def end(self) -> None:
        """Records that the request was answered or has failed, so that aborts of it stop."""
        self.done = True
        self._abort = self._task = None

    def cancel(self) -> None:
        """Aborts the generation on the server. The task that waits for it gets ``Cancelled`` when
        it has stopped.
        """
        if self.cancelled or self.done:
            return
        self.cancelled = True
        if self._abort is not None:
            self._abort(self)

    def raise_if_closed(self, role: str) -> None:
        """Call it on ``CancelledError``, which ``close_connection`` also causes, to end the request
        but not its task.

        Raises:
            Cancelled: ``close_connection`` was called.
        """
        if self.connection_closed:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            raise Cancelled("connection closed", role=role) from None

    def close_connection(self) -> None:
        """Closes the connection, for a server that refuses the abort."""
        if self._task is not None and not self.done:
            self.connection_closed = True
            self._task.cancel()
