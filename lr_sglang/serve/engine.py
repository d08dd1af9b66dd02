"""Behind the routes: who answers a request, which requests wait or are refused, and the life of an
answer. All of it belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np

from lr_sglang.algorithm import policy
from lr_sglang.engine.doubts import Name
from lr_sglang.engine.loop import keep_what_is_imported
from lr_sglang.engine.slots import Slots
from lr_sglang.errors import BadReply
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.modes import MODES
from lr_sglang.serve.errors import Refusal, refusal, refusal_of
from lr_sglang.serve.health import Health
from lr_sglang.serve.monitoring import Metrics, log, where
from lr_sglang.serve.protocol import PENALTIES, ChatRequest, TargetRoute
from lr_sglang.serve.replies import WrittenText
from lr_sglang.serve.requests import (
    ClientRequest,
    PassedRequest,
    check_ids,
    passed_request,
    settled,
)
from lr_sglang.serve.settings import Service
from lr_sglang.serve.thinking import TargetEndings
from lr_sglang.steps.branch import Request
from lr_sglang.user_programs.program import Program
from lr_sglang.user_programs.request_maker import RequestMaker

LATE_KEPT = 1200  # timers, of two minutes
ANSWER_END = object()  # after the last piece of an answer that went well
# Takes the pieces for the client, then ``ANSWER_END`` or a ``Refusal``; any number of them, so that
# a client that reads slowly, or not at all, holds no place once its answer is made.
Put = Callable[[Any], None]
Writer = Callable[[Put], Awaitable[None]]  # writes one answer, in pieces; cancelling it stops it


class Admission(Slots):
    """A bounded queue, first come first served, before a number of places.

    Args:
        places: answers at a time.
        queue: requests that may wait.
    """

    def __init__(self, places: int, queue: int) -> None:
        super().__init__(places)
        self._queue = queue
        self.closed = False

    def check(self) -> None:
        """Raises ``Refusal`` if the queue is full, or the endpoint is shutting down."""
        if self.closed:
            raise refusal("shutting_down")
        if not self.free() and self.waiting >= self._queue:
            raise refusal("queue_full")

    async def enter(self, request: Request | None = None, order: int = 0) -> None:
        """Waits for a place, which ``leave`` gives back; raises as ``check``."""
        self.check()
        await super().enter(request or Request(), order)

    def close(self) -> None:
        """Refuses all further requests, and those that wait: they raise ``Cancelled``."""
        self.closed = True
        for request in list(self._ready):
            request.cancel()


def _log_doubt(role: str, reason: str) -> None:
    log("runtime doubted", logging.WARNING, role=role, reason=reason)


class AnswerEngine:
    """What answers share, and who makes them.

    Args:
        roles: backends that are ready.
        service: what the operator allows.

    Attributes:
        program: the operator's own, which answers all requests; None for ours.
        late: how late the last timers of the event loop were, in seconds.

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
        self.roles = roles
        self.service = service
        self.metrics = metrics
        self.health = health
        self.admission = Admission(service.concurrency, service.queue)
        self.answers: dict[asyncio.Task[None], Put] = {}
        self.late = deque[float](maxlen=LATE_KEPT)
        self._target_name = ""
        self.requests = RequestMaker(roles, service.judge_prompt, policy.RunStatistics())
        for mode in service.modes:
            self.requests.check(MODES[mode], service.verifiers[0])
        if any(MODES[mode].ahead for mode in service.modes):
            for name in (*service.verifiers, "exact"):
                self.requests.verifier(name)
        self.program = Program.load(service.program) if service.program else None
        self.endings = TargetEndings(roles, service)
        self._set_gauges()
        keep_what_is_imported()

    def _set_gauges(self) -> None:
        metrics = self.metrics
        metrics.running.set_function(lambda: self.admission.running)
        metrics.waiting.set_function(lambda: self.admission.waiting)
        metrics.loop_late.set_function(lambda: float(np.quantile([*self.late, 0.0], 0.99)))
        if (judge := self.roles.get("judge")) is not None:
            judge.checks.warn = lambda reason: log(
                "judge not trusted", logging.WARNING, role=judge.role, reason=reason
            )
            metrics.false_accepts.set_function(
                lambda: found.surely if (found := judge.checks.worst()) else 0.0
            )
        for role, backend in self.roles.items():
            doubts = backend.doubts
            doubts.warn = partial(_log_doubt, role)
            for name in get_args(Name):
                metrics.doubts.labels(role, name).set_function(partial(doubts.has, name))
        for role, one in self.health.watches.items():
            metrics.up.labels(role).set_function(one.up)
            metrics.branches.labels(role).set_function(one.running)
            metrics.degraded_seconds.labels(role).set_function(one.total)

    async def read(
        self, route: TargetRoute, body: Mapping[str, Any]
    ) -> ClientRequest | PassedRequest:
        """Who answers a request: lookahead reasoning as far as that supports it, else the target
        alone.

        Raises:
            Refusal: the request is wrong, or not allowed.
        """
        service = self.service
        alone = ""
        check_ids(body, self.roles["target"].tokenizer.size)
        if route.reads is None:
            return passed_request(route, body, ("route",), service)
        follows = PENALTIES if self.roles["target"].facts.counts_written else ()
        request, why = route.reads.read(body, not service.passes, follows)
        if service.passes and service.adapter(request.model):
            alone = "model"  # an adapter, which has no draft
        elif service.passes and request.answers > service.concurrency:
            alone = "n"  # more than can be made here at a time
        if not why and not alone:
            return settled(request, service)
        if not alone and isinstance(request, ChatRequest) and self.endings.possible:
            asked = settled(request, service)
            if asked.mode.ahead:
                ending = await self.endings.ending_of(request, body, why)
                if ending is not None:
                    return replace(asked, ending=ending)
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
        for task, put in self.answers.items():
            put(refusal("shutting_down"))
            task.cancel()

    async def ended(self, seconds: float) -> None:
        """Waits up to ``seconds`` for the running answers to end."""
        if self.answers:
            await asyncio.wait(self.answers, timeout=seconds)

    def check(self) -> None:
        """Raises ``Refusal`` if no request can be answered now."""
        if self.health.watches["target"].down:
            raise refusal("target_down")
        self.admission.check()

    def begin(self, write: Writer, put: Put) -> asyncio.Task[None]:
        """Begins an answer in a task of its own, which waits for a place."""
        task = asyncio.create_task(self._answer(write, put))
        self.answers[task] = put
        task.add_done_callback(self.answers.pop)
        return task

    async def _answer(self, write: Writer, put: Put) -> None:
        try:
            await self.admission.enter()
            try:
                await write(put)
            finally:
                self.admission.leave()
        except BaseException as error:  # noqa: BLE001 - whatever a program raises ends its own answer
            put(_refusal(error))
        else:
            put(ANSWER_END)

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


async def delivered(
    engine: AnswerEngine, writers: Sequence[Writer]
) -> AsyncGenerator[tuple[int, Any], None]:
    """Makes the answers to one request at the same time; yields their pieces as they come, each
    with the index of its answer. An error or ``aclose`` stops all of them on every runtime at once.

    Raises:
        Refusal: the request cannot be answered, or not to its end.
    """
    began = time.monotonic()
    seconds = engine.service.timeout
    ready = asyncio.Queue[Any]()

    def puts(index: int) -> Put:
        return lambda piece: ready.put_nowait((index, piece))

    late = refusal("timeout", seconds=seconds)
    timer = asyncio.get_running_loop().call_later(seconds, puts(-1), late)
    tasks = [engine.begin(write, puts(index)) for index, write in enumerate(writers)]
    begun = set[int]()
    going = len(tasks)
    try:
        while going:
            index, piece = await ready.get()
            if isinstance(piece, Refusal):
                raise piece
            if piece is ANSWER_END:
                going -= 1
                engine.metrics.seconds.observe(time.monotonic() - began)
                continue
            if index not in begun and isinstance(piece, WrittenText | bytes):
                begun.add(index)
                engine.metrics.first_step.observe(time.monotonic() - began)
            yield index, piece
    finally:
        timer.cancel()
        for task in tasks:
            task.cancel()


def _refusal(error: BaseException) -> Refusal:
    """What the client is told of an error. Logs one of ours, of a program's or a verifier's."""
    if isinstance(error, asyncio.CancelledError):
        return refusal("shutting_down")
    found = refusal_of(error)
    if found.code == "internal_error":
        about = {"error": type(error).__name__, "where": where(error.__cause__ or error)}
        log("internal error", logging.ERROR, **about, hint=getattr(error, "hint", ""))
    if found is not error:
        # they hold a program's frames and states in memory
        error.__traceback__ = error.__context__ = error.__cause__ = None
        found.__cause__ = error
    return found
