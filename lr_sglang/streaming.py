"""The steps of one answer as they are kept, in a loop or in an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue

from lr_sglang.asking import Task
from lr_sglang.errors import ConfigError
from lr_sglang.live import STOP_AGAIN
from lr_sglang.solution import Solution
from lr_sglang.trace import StepRecord


class Stream:
    """The steps of one answer, once. Leaving the loop early stops the answer, on the servers too."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._thread: threading.Thread | None = None
        self._result: Solution | BaseException | None = None

    @property
    def solution(self) -> Solution:
        """The whole answer, once all steps were read.

        Raises:
            ConfigError: they were not.
        """
        if not isinstance(self._result, Solution):
            raise ConfigError("the answer is not complete", hint="read the stream to its end first")
        return self._result

    def close(self) -> None:
        """Stops the answer, if it is still being made, and waits until it has ended. Idempotent."""
        while self._thread is not None and self._thread.is_alive():
            self._task.job.stop()
            self._thread.join(STOP_AGAIN)

    def __iter__(self) -> Iterator[StepRecord]:
        ready: SimpleQueue[StepRecord | None] = SimpleQueue()
        self._begin(ready.put)
        try:
            while (step := ready.get()) is not None:
                yield step
        finally:
            self.close()
        if isinstance(self._result, BaseException):
            raise self._result

    async def __aiter__(self) -> AsyncIterator[StepRecord]:
        loop, ready = asyncio.get_running_loop(), asyncio.Queue[StepRecord | None]()

        def put(step: StepRecord | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(ready.put_nowait, step)

        self._begin(put)
        try:
            while (step := await ready.get()) is not None:
                yield step
        finally:
            await asyncio.shield(loop.run_in_executor(None, self.close))
        if isinstance(self._result, BaseException):
            raise self._result

    def _begin(self, put: Callable[[StepRecord | None], None]) -> None:
        if self._thread is not None:
            raise ConfigError("a stream can be read once", hint="lr.stream(...) again")

        def work() -> None:
            try:
                self._result = self._task.run()
            except BaseException as error:  # noqa: BLE001 - it is raised where the stream is read
                self._result = error
            put(None)

        self._task.job.on_step = put
        self._thread = threading.Thread(target=work, name="lr-solve", daemon=True)
        self._thread.start()
