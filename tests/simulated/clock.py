"""An event loop whose clock jumps to the next timer, so that waiting takes no real time."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
# Real seconds to wait for another thread where no timer is set.
THREAD_SECONDS = 5.0


class Stuck(RuntimeError):
    """All tasks on the virtual clock wait and no timer is set, so that none would ever continue."""


class _Selector(selectors.DefaultSelector):
    """Polls for events, and advances the clock instead of waiting."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> Any:
        if timeout == 0:
            return []  # callbacks from threads are in the loop's queue already
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            ready = super().select(THREAD_SECONDS)
            if not ready:
                raise Stuck("everything waits, and no timer is set")
            return ready
        self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop. Coroutines may wait for timers and each other; for a thread only while no
    timer is set.

    Attributes:
        now: virtual seconds since the loop was made.
    """

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 1e-6  # what is due so soon after another is due with it

    def time(self) -> float:
        return self.now


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the virtual clock, in a thread that runs no loop.

    Raises:
        Stuck: it waits for ever.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
