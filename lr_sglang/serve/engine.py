"""Behind the routes: who answers a request, which requests wait or are refused, and the life of an
answer. All of it belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from lr_sglang.algorithm import policy
from lr_sglang.engine.lateness import Lateness
from lr_sglang.engine.loop import keep_what_is_imported
from lr_sglang.errors import BadReply, LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.modes import MODES
from lr_sglang.serve.errors import Refusal, refusal, refusal_of
from lr_sglang.serve.health import Health, Watch
from lr_sglang.serve.monitoring import Metrics, log, where
from lr_sglang.serve.protocol import PENALTIES, ChatRequest, TargetRoute
from lr_sglang.serve.replies import Written
from lr_sglang.serve.requests import Asked, PassedRequest, passed_request, settled
from lr_sglang.serve.settings import Service
from lr_sglang.serve.thinking import Thinking
from lr_sglang.user_programs.lookahead_backend import backends
from lr_sglang.user_programs.program import Program, ProgramError
from lr_sglang.verifiers.requests import RequestMaker

T = TypeVar("T")
END = object()  # after the last piece of an answer that went well
LIST_SECONDS = 2.0  # for the target to list its models
LONGEST_AGAIN = 60


class Admission:
    """A bounded queue, first come first served, before a number of places.

    Args:
        places: answers at a time.
        queue: requests that may wait.
    """

    def __init__(self, places: int, queue: int) -> None:
        self._places, self._queue = places, queue
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._seconds = 1.0  # of an answer, on average
        self.running, self.closed = 0, False

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    def check(self) -> None:
        """Raises ``Refusal`` if the queue is full, or the endpoint is shutting down."""
        if self.closed:
            raise refusal("shutting_down")
        if (self._waiting or self.running >= self._places) and self.waiting >= self._queue:
            raise refusal("queue_full", again=self._again())

    async def enter(self) -> None:
        """Waits for a place, which ``leave`` gives back; raises as ``check``."""
        self.check()
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()  # it was admitted at the moment of its cancellation
            else:
                self._admit()
            raise

    def leave(self, seconds: float | None = None) -> None:
        """Frees a place, after ``seconds`` of work."""
        if seconds is not None:
            self._seconds += (seconds - self._seconds) / 8
        self.running -= 1
        self._admit()

    def close(self) -> None:
        """Refuses all further requests, and those that wait."""
        self.closed = True
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(refusal("shutting_down"))
        self._admit()

    def _admit(self) -> None:
        """Gives free places to those that have waited longest."""
        self._waiting = deque(turn for turn in self._waiting if not turn.done())
        while self._waiting and self.running < self._places:
            self.running += 1
            self._waiting.popleft().set_result(None)

    def _again(self) -> int:
        """Seconds after which a client that was refused may find the queue shorter."""
        seconds = self._seconds * (1 + self.waiting) / self._places
        return min(LONGEST_AGAIN, max(1, math.ceil(seconds)))


class AnswerEngine:
    """What answers share, and who makes them.

    Args:
        roles: backends that are ready.
        service: what the operator allows.

    Attributes:
        running: the answers that are being made.
        program: the operator's own, which answers all requests; None for ours.

    Raises:
        ConfigError: a verifier lacks its runtime, or a mode its draft; there is no such program.
    """

    def __init__(
        self,
        roles: Mapping[str, RuntimeBackend],
        service: Service,
        metrics: Metrics,
        health: Health,
    ) -> None:
        self.roles, self.service, self.metrics, self.health = roles, service, metrics, health
        self.admission = Admission(service.concurrency, service.queue)
        self.running: set[ServedAnswer] = set()
        self.lateness, self._target_name = Lateness(), ""
        self.requests = RequestMaker(roles, service.judge_prompt, policy.RunStatistics())
        if any(MODES[mode].ahead for mode in service.modes):
            for name in (*service.verifiers, "exact"):
                self.requests.verifier(name)
        self.program = Program.load(service.program) if service.program else None
        self.backend = backends(self.requests)
        self.thinking = Thinking(roles, service, self.admission.check)
        self._set_gauges()
        keep_what_is_imported()

    def _set_gauges(self) -> None:
        metrics = self.metrics
        metrics.running.set_function(lambda: len(self.running))
        metrics.waiting.set_function(lambda: self.admission.waiting)
        metrics.loop_late.set_function(self.lateness.p99)
        if (judge := self.roles.get("judge")) is not None:
            judge.checks.warn = lambda reason: log(
                "judge not trusted", logging.WARNING, role=judge.role, reason=reason
            )
            metrics.false_accepts.set_function(
                lambda: found.surely if (found := judge.checks.worst()) else 0.0
            )
        for role, one in self.health.watches.items():
            metrics.up.labels(role).set_function(partial(_is_up, one))
            metrics.branches.labels(role).set_function(one.running)
            metrics.degraded_seconds.labels(role).set_function(one.total)

    async def read(self, route: TargetRoute, body: Mapping[str, Any]) -> Asked | PassedRequest:
        """Who answers a request: lookahead reasoning as far as that supports it, else the target
        alone.

        Raises:
            Refusal: the request is wrong, or not allowed.
        """
        service, alone = self.service, ""
        if route.reads is None:
            return passed_request(route, body, ("route",), service)
        follows = PENALTIES if self.roles["target"].counts_written else ()
        request, why = route.reads.read(body, not service.passes, follows)
        if service.passes and request.model.startswith(f"{service.model}:"):
            alone = "model"  # an adapter, which has no draft
        elif service.passes and request.answers > service.concurrency:
            alone = "n"  # more than can be made here at a time
        if not why and not alone:
            return settled(request, service)
        if not alone and isinstance(request, ChatRequest):
            conclusion = await self.thinking.conclusion(request, body, why)
            asked = None if conclusion is None else settled(request, service, conclusion)
            if asked is not None and asked.mode.ahead:
                return asked
        why = why or (alone,)
        if request.names_lookahead:
            raise request.cannot(alone or why[0])
        return passed_request(route, body, why, service)

    @property
    def idle(self) -> bool:
        """Whether no answer is being made, or about to be."""
        return not self.admission.running

    async def prepare(self) -> None:
        """Asks the judge about steps that differ, if the operator wants that, and measures what
        requests cost.
        """
        for name in self.service.verifiers if self.service.check_judge else ():
            await self.requests.check_judge(self.service.lookahead.replace(verifier=name))
        for mode in self.service.modes:
            await self.requests.measure_costs(MODES[mode].lookahead(self.service.lookahead))

    def stop(self) -> None:
        """Admits no more requests, and stops the running answers."""
        self.admission.close()
        for one in list(self.running):
            one.ready.put_nowait(refusal("shutting_down"))
            one.stop()

    async def ended(self, seconds: float) -> None:
        """Waits up to ``seconds`` for the running answers to end."""
        if tasks := [one.task for one in self.running if one.task is not None]:
            await asyncio.wait(tasks, timeout=seconds)

    async def adapters(self) -> list[str]:
        """The names under which requests ask for LoRA adapters of the target; none if it does not
        list them.
        """
        if not self.service.passes or self.health.watches["target"].down:
            return []
        try:
            listed = await self.roles["target"].transport.get("/v1/models", LIST_SECONDS)
            return [f"{self.service.model}:{one['id']}" for one in listed.get("data", [])[1:]]
        except (LookaheadError, LookupError, TypeError):
            return []

    async def target_name(self) -> str:
        """The name under which the target itself serves its model; raises ``LookaheadError`` if it
        lists none.
        """
        if not self._target_name:
            listed = await self.roles["target"].transport.get("/v1/models")
            try:
                self._target_name = str(listed["data"][0]["id"])
            except (LookupError, TypeError) as error:
                raise BadReply("/v1/models lists no model", role="target") from error
        return self._target_name


def _is_up(watch: Watch) -> float:
    return float(not watch.down)


class ServedAnswer:
    """The life of one answer: it is prepared, admitted, written in a task, delivered, counted and
    ended.

    Attributes:
        ready: the pieces for the client, then ``END`` or an error. It takes any number, so that a
            client that reads slowly, or not at all, holds no place once its answer is made.
        task: runs ``write``; the answer gives back its place when the task ends.
        began: when it was admitted, in seconds of the monotonic clock.
    """

    began = 0.0
    task: asyncio.Task[None] | None = None

    def __init__(self, engine: AnswerEngine) -> None:
        self.engine = engine
        self.ready: asyncio.Queue[Any] = asyncio.Queue()

    def prepare(self) -> None:
        """Prepares the prompt before admission, in a thread; raises ``Refusal`` if the request
        cannot be answered.
        """

    async def write(self) -> None:
        """Puts pieces into ``ready`` until the answer is complete."""
        raise NotImplementedError

    def complete(self, error: BaseException | None) -> None:
        """Puts the last piece into ``ready`` when ``write`` has ended."""
        self.ready.put_nowait(END if error is None else error)

    def stop(self) -> None:
        """Stops ``write`` if it has not ended."""
        if self.task is not None:
            self.task.cancel()

    async def pieces(self) -> AsyncGenerator[Any, None]:
        """Runs the whole life and yields the pieces. An error or ``aclose`` stops the answer on
        every runtime at once.

        Raises:
            Refusal: the request cannot be answered, or not to its end.
        """
        engine, asked, loop = self.engine, time.monotonic(), asyncio.get_running_loop()
        deadline = loop.time() + engine.service.timeout
        late = refusal("timeout", seconds=engine.service.timeout)
        if engine.health.watches["target"].down:
            raise refusal("target_down")
        engine.admission.check()  # before the work of a long prompt
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.to_thread(self.prepare)
                await engine.admission.enter()
        except TimeoutError:
            raise late from None
        self.began = time.monotonic()
        self.task = asyncio.create_task(self.write())
        self.task.add_done_callback(self._ended)
        engine.running.add(self)
        timer = loop.call_at(deadline, self.ready.put_nowait, late)  # one for all pieces
        try:
            first = True
            while (piece := await self.ready.get()) is not END:
                if isinstance(piece, BaseException):
                    raise piece if isinstance(piece, Refusal) else refusal_of(piece) from piece
                if first and isinstance(piece, Written | bytes):
                    first = False
                    engine.metrics.first_step.observe(time.monotonic() - asked)
                yield piece
            engine.metrics.seconds.observe(time.monotonic() - asked)
        finally:
            timer.cancel()
            self.stop()

    def _ended(self, done: asyncio.Task[None]) -> None:
        self.engine.running.discard(self)
        self.engine.admission.leave(time.monotonic() - self.began)
        error = refusal("shutting_down") if done.cancelled() else done.exception()
        if error is not None:
            if not isinstance(error, LookaheadError) or isinstance(error, ProgramError):
                about = {"error": type(error).__name__, "where": where(error.__cause__ or error)}
                log("internal error", logging.ERROR, **about, hint=getattr(error, "hint", ""))
            # they hold a program's frames and states in memory
            error.__traceback__ = error.__context__ = None
            if not isinstance(error, Refusal):
                error.__cause__ = None
        self.complete(error)


async def together(
    streams: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[int, T], None]:
    """Merges streams: yields each value when it comes, with the number of its stream.

    An error of one stream is raised. It closes all streams, as ``aclose`` does.
    """
    if len(streams) == 1:  # as almost always: no task and no queue between
        async with aclosing(streams[0]) as only:
            async for value in only:
                yield 0, value
        return
    ready: asyncio.Queue[tuple[int, T] | asyncio.Task[None]] = asyncio.Queue()

    async def read(number: int, stream: AsyncGenerator[T, None]) -> None:
        async with aclosing(stream):
            async for value in stream:
                ready.put_nowait((number, value))

    tasks = {asyncio.create_task(read(number, stream)) for number, stream in enumerate(streams)}
    for task in tasks:
        task.add_done_callback(ready.put_nowait)
    try:
        while tasks:
            found = await ready.get()
            if isinstance(found, asyncio.Task):
                tasks.discard(found)
                found.result()
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
