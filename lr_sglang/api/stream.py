"""The steps of one answer as they are kept, for ``for`` and ``async for``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from lr_sglang.api.deployment import STOP_AGAIN, OpenDeployment
from lr_sglang.api.solution import Solution
from lr_sglang.api.solve import AnswerTask, Asked, resolve_request
from lr_sglang.errors import ConfigError
from lr_sglang.steps.trace import StepRecord


class Stream:
    """The steps of one answer, to be read once. Leaving the loop early cancels the answer, on the
    servers too.
    """

    def __init__(self, task: AnswerTask) -> None:
        self._task = task
        self._made: Future[Solution] | None = None

    @property
    def solution(self) -> Solution:
        """The whole answer, when all steps have been read.

        Raises:
            ConfigError: not all steps have been read.
        """
        if (
            self._made is None
            or not self._made.done()
            or self._made.cancelled()
            or self._made.exception()
        ):
            raise ConfigError("the answer is not complete", hint="read the stream to its end first")
        return self._made.result()

    def close(self) -> None:
        """Cancels the answer if it is not complete, and waits until it has ended. Idempotent."""
        while self._made is not None and not self._made.done():
            self._task.job.stop()
            wait([self._made], STOP_AGAIN)

    def __iter__(self) -> Iterator[StepRecord]:
        ready: SimpleQueue[StepRecord | None] = SimpleQueue()
        made = self._begin(ready.put)
        try:
            while (step := ready.get()) is not None:
                yield step
        finally:
            self.close()
        made.result()

    async def __aiter__(self) -> AsyncIterator[StepRecord]:
        loop, ready = asyncio.get_running_loop(), asyncio.Queue[StepRecord | None]()

        def put(step: StepRecord | None) -> None:
            with suppress(RuntimeError):  # the loop is closed, and no task of it waits
                loop.call_soon_threadsafe(ready.put_nowait, step)

        made = self._begin(put)
        try:
            while (step := await ready.get()) is not None:
                yield step
        finally:
            await asyncio.shield(loop.run_in_executor(None, self.close))
        made.result()

    def _begin(self, put: Callable[[StepRecord | None], None]) -> Future[Solution]:
        if self._made is not None:
            raise ConfigError("a stream can be read once", hint="lr.stream(...) again")
        self._task.job.on_step = put
        self._task.job.on_tokens = lambda ids: None  # so that generations are streamed
        self._made = asyncio.run_coroutine_threadsafe(self._task.run(), self._task.live.loop)
        self._made.add_done_callback(lambda _: put(None))
        return self._made


def stream(question: Asked, *, deployment: OpenDeployment, **given: Any) -> Stream:
    """The steps of an answer as they are kept, with ``for`` or with ``async for``. Arguments as for
    ``solve``.

    The steps of a program come when it ends, because only then the generations in its answer are
    known. Those of ``lookahead(show=True)``, and of programs that take the ``AnswerRequest``, come
    as they are kept.

    Raises:
        ConfigError: as ``solve``.
    """
    program, on_event = given.pop("program", None), given.pop("on_event", None)
    mode = given.pop("mode", "lookahead")
    return Stream(resolve_request(deployment, question, program, mode, on_event, given))
