"""What a client has sent is looked at a part at a time, so that one that sends much holds up no other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl


class Turns:
    """A queue of work, of which one piece is done between two looks of the event loop at everything else."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, work: Callable[[], None]) -> None:
        """Has it done when its turn comes, on the running loop."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next)


class Flow(FlowControl):
    """uvicorn's flow control, which does not read on while there is still something to be looked at.

    Attributes:
        held: whether there is.
    """

    held = False

    def hold(self) -> None:
        """Stops reading until ``let_go``."""
        self.held = self.read_paused = True
        self._transport.pause_reading()  # uvicorn reads on after the rest of a body, even while it is paused

    def let_go(self) -> None:
        """Reads on."""
        self.held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()
