"""The life of an answer: it is prepared, admitted, made in a task, delivered, counted and ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any

from lr_sglang.errors import LookaheadError
from lr_sglang.serve.engine import AnswerEngine
from lr_sglang.serve.errors import Refusal, refusal, refusal_of
from lr_sglang.serve.logs import log, where
from lr_sglang.user_programs.program import ProgramError

END = object()  # after the last piece of an answer that went well


class ServedAnswer:
    """One answer. Belongs to the event loop.

    Attributes:
        ready: the pieces for the client, then ``END`` or an error. It takes any number, so that a
            client that reads slowly, or not at all, holds no place once its answer is made.
        task: runs ``make``; the answer gives back its place when the task ends.
    """

    def __init__(self, engine: AnswerEngine) -> None:
        self.engine, self.began = engine, 0.0
        self.ready: asyncio.Queue[Any] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Prepares the prompt before admission, in a thread; raises ``Refusal`` if the request
        cannot be answered.
        """

    def begin(self) -> None:
        """Called once it is admitted, before ``make``."""

    async def make(self) -> None:
        """Puts pieces into ``ready`` until the answer is complete."""
        raise NotImplementedError

    def complete(self, error: BaseException | None) -> None:
        if error is not None:
            self.end(error)

    def stop(self) -> None:
        """Stops ``make`` if it has not ended."""
        if self.task is not None:
            self.task.cancel()

    async def pieces(self) -> AsyncGenerator[Any, None]:
        """Runs the whole life and yields the pieces. An error or ``aclose`` stops the answer on
        every runtime at once.

        Raises:
            Refusal: the request cannot be answered, or not to its end.
        """
        engine, asked, loop = self.engine, time.monotonic(), asyncio.get_running_loop()
        deadline, late = (
            loop.time() + engine.service.timeout,
            refusal("timeout", seconds=engine.service.timeout),
        )
        if engine.health.watches["target"].down:
            raise refusal("target_down")
        engine.admission.check()  # before the work of a long prompt
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.to_thread(self.prepare)
                await engine.admission.enter()
        except TimeoutError:
            raise late from None
        self._start()
        timer = loop.call_at(deadline, self.end, late)  # one for all pieces
        try:
            first = True
            while (piece := await self.ready.get()) is not END:
                if isinstance(piece, BaseException):
                    raise piece if isinstance(piece, Refusal) else refusal_of(piece) from piece
                if first and isinstance(piece, list | bytes):
                    first = False
                    engine.metrics.first_step.observe(time.monotonic() - asked)
                yield piece
            engine.metrics.seconds.observe(time.monotonic() - asked)
        finally:
            timer.cancel()
            self.stop()

    def end(self, last: Any) -> None:
        """Queues the last piece."""
        self.ready.put_nowait(last)

    def _start(self) -> None:
        self.began = time.monotonic()
        try:
            self.begin()
        except BaseException:
            self.engine.admission.leave()
            raise
        self.engine.running.add(self)
        self.task = asyncio.create_task(self.make())
        self.task.add_done_callback(self._ended)

    def _ended(self, done: asyncio.Task[None]) -> None:
        self.engine.running.discard(self)
        self.engine.admission.leave(time.monotonic() - self.began)
        error = refusal("shutting_down") if done.cancelled() else done.exception()
        if error is not None:
            if not isinstance(error, LookaheadError) or isinstance(error, ProgramError):
                about = {"error": type(error).__name__, "where": where(error.__cause__ or error)}
                log("internal error", logging.ERROR, **about, hint=getattr(error, "hint", ""))
            error.__traceback__ = error.__context__ = (
                None  # they hold a program's frames and states in memory
            )
            if not isinstance(error, Refusal):
                error.__cause__ = None
        self.complete(error)
