"""Measures how late an event loop runs its timers: CPU work on it delays every branch of every
answer.
"""

from __future__ import annotations

import asyncio
from collections import deque

PERIOD_SECONDS = 0.02
KEPT = 6000  # number of samples, of two minutes


class Lateness:
    """Samples the delay of a timer of the running loop. Call ``start`` and ``stop`` on
    that loop.
    """

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=KEPT)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts sampling."""
        self._task = asyncio.get_running_loop().create_task(self._sample())

    def stop(self) -> None:
        """Stops sampling; the samples are kept."""
        if self._task is not None:
            self._task.cancel()

    def p99(self) -> float:
        """The 99th percentile of the lateness, in seconds; 0 without samples."""
        ordered = sorted(self._samples)
        return ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + PERIOD_SECONDS
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            now = loop.time()
            self._samples.append(max(0.0, now - due))
            due = now + PERIOD_SECONDS
