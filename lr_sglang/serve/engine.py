"""Behind the routes: who answers a request, which requests wait or are refused, and the life of an
answer. All of it belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from lr_sglang.algorithm import policy
from lr_sglang.engine.lateness import Lateness
from lr_sglang.engine.loop import keep_what_is_imported
from lr_sglang.engine.pool import Pool
from lr_sglang.engine.request import Request
from lr_sglang.errors import BadReply, LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.modes import MODES
from lr_sglang.serve.errors import Refusal, refusal, refusal_of
from lr_sglang.serve.health import Health
from lr_sglang.serve.monitoring import Metrics, log, where
from lr_sglang.serve.protocol import PENALTIES, ChatRequest, TargetRoute
from lr_sglang.serve.replies import Written
from lr_sglang.serve.requests import Asked, PassedRequest, passed_request, settled
from lr_sglang.serve.settings import Service
from lr_sglang.serve.thinking import Thinking
from lr_sglang.user_programs.lookahead_backend import backends
from lr_sglang.user_programs.program import Program, ProgramError
from lr_sglang.verifiers.requests import RequestMaker

END = object()  # after the last piece of an answer that went well
Put = Callable[[Any], None]
LONGEST_AGAIN = 60


class Admission(Pool):
    """A bounded queue, first come first served, before a number of places.

    Args:
        places: answers at a time.
        queue: requests that may wait.
    """

    def __init__(self, places: int, queue: int) -> None:
        super().__init__(places)
        self._places, self._queue = places, queue
        self._seconds = 1.0  # of an answer, on average
        self.closed = False

    def check(self) -> None:
        """Raises ``Refusal`` if the queue is full, or the endpoint is shutting down."""
        if self.closed:
            raise refusal("shutting_down")
        if not self.free() and self.waiting >= self._queue:
            # when a client that is refused may find the queue shorter
            seconds = math.ceil(self._seconds * (1 + self.waiting) / self._places)
            raise refusal("queue_full", again=min(LONGEST_AGAIN, max(1, seconds)))

    async def enter(self, request: Request | None = None, order: int = 0) -> None:
        """Waits for a place, which ``leave`` gives back; raises as ``check``."""
        self.check()
        await super().enter(request or Request(), order)

    def leave(self, seconds: float | None = None) -> None:
        """Frees a place, after ``seconds`` of work."""
        if seconds is not None:
            self._seconds += (seconds - self._seconds) / 8
        super().leave()

    def close(self) -> None:
        """Refuses all further requests, and those that wait: they raise ``Cancelled``."""
        self.closed = True
        for request in list(self._ready):
            request.cancel()


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
            metrics.up.labels(role).set_function(one.up)
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
            one.put(refusal("shutting_down"))
            one.stop()

    async def ended(self, seconds: float) -> None:
        """Waits up to ``seconds`` for the running answers to end."""
        if tasks := [one.task for one in self.running]:
            await asyncio.wait(tasks, timeout=seconds)

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


class ServedAnswer:
    """The life of one answer, in a task: it is prepared, admitted, written, counted and ended.

    Args:
        put: takes the pieces for the client, then ``END`` or an error. It takes any number, so that
            a client that reads slowly, or not at all, holds no place once its answer is made.

    Attributes:
        began: when it was admitted, in seconds of the monotonic clock; 0 before.
    """

    def __init__(self, engine: AnswerEngine, put: Put) -> None:
        self.engine, self.put, self.began = engine, put, 0.0
        self.task = asyncio.create_task(self._live())
        self.task.add_done_callback(self._ended)

    def prepare(self) -> None:
        """Prepares the prompt before admission, in a thread; raises ``Refusal`` if the request
        cannot be answered.
        """

    async def write(self) -> None:
        """Puts pieces until the answer is complete."""
        raise NotImplementedError

    def count(self) -> None:
        """Counts an answer that has ended, with an error or without."""

    def stop(self) -> None:
        """Stops it if it has not ended."""
        self.task.cancel()

    async def _live(self) -> None:
        engine = self.engine
        await asyncio.to_thread(self.prepare)
        await engine.admission.enter()
        self.began = time.monotonic()
        engine.running.add(self)
        try:
            await self.write()
        finally:
            engine.running.discard(self)
            engine.admission.leave(time.monotonic() - self.began)
            self.count()

    def _ended(self, done: asyncio.Task[None]) -> None:
        error = refusal("shutting_down") if done.cancelled() else done.exception()
        if error is not None:
            if not isinstance(error, LookaheadError) or isinstance(error, ProgramError):
                about = {"error": type(error).__name__, "where": where(error.__cause__ or error)}
                log("internal error", logging.ERROR, **about, hint=getattr(error, "hint", ""))
            # they hold a program's frames and states in memory
            error.__traceback__ = error.__context__ = None
            if not isinstance(error, Refusal):
                error.__cause__ = None
        self.put(END if error is None else error)


async def delivered(
    engine: AnswerEngine, makers: Sequence[Callable[[Put], ServedAnswer]]
) -> AsyncGenerator[tuple[int, Any], None]:
    """Makes the answers to one request at the same time; yields their pieces as they come, each
    with the index of its answer. An error or ``aclose`` stops all of them on every runtime at once.

    Raises:
        Refusal: the request cannot be answered, or not to its end.
    """
    if engine.health.watches["target"].down:
        raise refusal("target_down")
    engine.admission.check()  # before the work of a long prompt
    asked, seconds, ready = time.monotonic(), engine.service.timeout, asyncio.Queue[Any]()

    def puts(index: int) -> Put:
        return lambda piece: ready.put_nowait((index, piece))

    late = refusal("timeout", seconds=seconds)
    timer = asyncio.get_running_loop().call_later(seconds, puts(-1), late)
    answers = [make(puts(index)) for index, make in enumerate(makers)]
    begun, ended = set[int](), set[int]()
    try:
        while len(ended) < len(answers):
            index, piece = await ready.get()
            if index in ended:
                continue
            if isinstance(piece, BaseException):
                raise piece if isinstance(piece, Refusal) else refusal_of(piece) from piece
            if piece is END:
                ended.add(index)
                engine.metrics.seconds.observe(time.monotonic() - asked)
                continue
            if index not in begun and isinstance(piece, Written | bytes):
                begun.add(index)
                engine.metrics.first_step.observe(time.monotonic() - asked)
            yield index, piece
    finally:
        timer.cancel()
        for one in answers:
            one.stop()
