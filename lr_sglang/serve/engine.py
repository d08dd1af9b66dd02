"""Makes answers: admits requests, runs each one's program as a task of the event loop, and gives out its pieces."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.api.runner import keep_what_is_imported
from lr_sglang.engine.lateness import Lateness
from lr_sglang.errors import Cancelled, LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.run import run_program
from lr_sglang.frontend.stream_text import Chunk, Reasoning, StreamText
from lr_sglang.modes import MODES
from lr_sglang.serve.admission import Admission
from lr_sglang.serve.errors import Refusal, refusal, refusal_of
from lr_sglang.serve.health import Health
from lr_sglang.serve.logs import log, where
from lr_sglang.serve.metrics import Metrics
from lr_sglang.serve.pass_through import PassThrough
from lr_sglang.serve.processes.board import Board
from lr_sglang.serve.processes.sharing import Sharing
from lr_sglang.serve.program import ServedProgram, answer_request
from lr_sglang.serve.prompt import Prompt, prepare
from lr_sglang.serve.replies import Item, Summary, costs_of
from lr_sglang.serve.request_options import RequestOptions
from lr_sglang.serve.settings import Service
from lr_sglang.serve.thinking import Thinking, think_then_conclude, with_calls
from lr_sglang.steps.trace import StepRecord
from lr_sglang.user_programs.program import ProgramError
from lr_sglang.verifiers.requests import RequestMaker

STOP_AGAIN = 0.1  # seconds until it is looked whether an answer that was stopped has ended
HANG_UP_AFTER = 5  # of these looks: an abort that is heard takes some milliseconds

# Seconds that a complete answer waits until its runtimes have ended its last requests.
PATIENCE = 1.0


@dataclass(eq=False)
class _Answer:
    """One answer in the making."""

    job: AnswerRequest
    delivery: StreamText
    ready: asyncio.Queue[Item | BaseException]
    options: RequestOptions
    began: float
    costs: dict[str, int] | None = None
    program: asyncio.Task[None] | None = None
    cut: bool = False  # all is there that comes before a stop string
    stopping: bool = False
    stops: int = 0
    done: bool = False


class AnswerEngine:
    """Everything behind the routes. Belongs to the event loop.

    Args:
        roles: backends that are ready.
        service: what the operator allows.
        board: what the processes of the endpoint share.

    Raises:
        ConfigError: a verifier lacks its runtime, or a mode its draft; there is no such program.
    """

    def __init__(
        self, roles: Mapping[str, RuntimeBackend], service: Service, metrics: Metrics, health: Health, board: Board
    ) -> None:
        self.roles, self.service, self.metrics, self.health = roles, service, metrics, health
        self.admission = Admission(service.concurrency, service.queue, board)
        self.sharing = Sharing(board, roles.values(), self.admission, metrics)
        known = policy.experience_for(service.lookahead)
        self._requests = RequestMaker(roles, service.judge_prompt, lambda look: known)
        if any(MODES[mode].ahead for mode in service.modes):
            for name in (*service.verifiers, "exact"):
                self._requests.verifier(name)
        self._operator_program = ServedProgram(service.program, self._requests) if service.program else None
        self.thinking = Thinking(roles, service, self.admission.check)
        self._concluding = ServedProgram(think_then_conclude, self._requests)
        self._running: set[_Answer] = set()
        self.passing = PassThrough(roles, service, metrics, health, self.admission)
        metrics.watch(metrics.running, lambda: len(self._running) + self.passing.running)
        metrics.watch(metrics.waiting, lambda: self.admission.waiting)
        if (judge := roles.get("judge")) is not None:
            judge.checks.warn = partial(_distrusted, judge.role)
            metrics.watch(metrics.false_accepts, lambda: found.surely if (found := judge.checks.worst()) else 0.0)
        self.lateness = Lateness()
        metrics.watch(metrics.loop_late, self.lateness.p99)
        for role, watch in health.watches.items():
            metrics.watch(metrics.up, watch.up, role=role)
            metrics.watch(metrics.branches, watch.gate.running, role=role)
            metrics.watch(metrics.degraded_seconds, watch.total, role=role)
        keep_what_is_imported()

    @property
    def idle(self) -> bool:
        """Whether no answer is being made, or about to be."""
        return not self.admission.running

    def answer(self, options: RequestOptions) -> AsyncGenerator[Item, None]:
        """The pieces of an answer as they come, events if they are wanted, and at the end the summary.

        Leaving it, by a failure or by ``aclose``, stops the answer on every runtime at once.

        Raises:
            Refusal: the request cannot be answered, or not to its end.
        """
        items = self._answer(options)
        if options.conclusion is None or not options.conclusion.tools:
            return items
        return with_calls(items, partial(self.thinking.calls_in, options.conclusion.tools))

    async def _answer(self, options: RequestOptions) -> AsyncGenerator[Item, None]:
        asked = time.monotonic()
        deadline = asyncio.get_running_loop().time() + self.service.timeout
        if self.health.watches["target"].down:
            raise refusal("target_down")
        if self._operator_program is not None and (options.prefix or not options.chat):
            wrong = "continue_final_message" if options.prefix else "prompt"
            raise Refusal(400, "This endpoint answers whole conversations only", param=wrong)
        self.admission.check()  # before the work that a long prompt is
        try:
            async with asyncio.timeout_at(deadline):
                prompt = await asyncio.to_thread(prepare, options, self.roles["target"], self.service)
                await self.admission.enter()
            try:
                answer = self._begin(options, prompt)
            except BaseException:
                self.admission.leave()
                raise
            try:
                waited, first = time.monotonic(), True
                while True:
                    item = await self._next(answer, deadline)
                    if isinstance(item, BaseException):
                        raise refusal_of(item) from item
                    if isinstance(item, list):
                        now = time.monotonic()
                        (self.metrics.first_step if first else self.metrics.step).observe(
                            now - (asked if first else waited)
                        )
                        waited, first = now, False
                    yield item
                    if isinstance(item, Summary):
                        self.metrics.seconds.observe(time.monotonic() - asked)
                        return
            finally:
                self._stop(answer)
        except TimeoutError:
            raise refusal("timeout", seconds=self.service.timeout) from None

    async def _next(self, answer: _Answer, deadline: float) -> Item | BaseException:
        """What comes next. An answer that is complete does not wait for long for a runtime to be rid of it."""
        now = asyncio.get_running_loop().time
        while True:
            try:
                async with asyncio.timeout_at(min(deadline, now() + PATIENCE)):
                    return await answer.ready.get()
            except TimeoutError:
                # an operator's program may go on after an answer of its own
                if answer.cut or (answer.job.record.finish and self._operator_program is None):
                    # not at once: the loop may not have put the last step there yet
                    asyncio.get_running_loop().call_soon(self._finish, answer)
                elif now() >= deadline:
                    raise

    async def check_judge(self) -> None:
        """Asks the judge about steps that differ; says so where it is not to be trusted."""
        for name in self.service.verifiers if self.service.check_judge else ():
            await self._requests.check_judge(self.service.lookahead.replace(verifier=name))

    def close(self) -> None:
        """Admits no more requests; what is running goes on."""
        self.admission.close()

    def stop(self) -> None:
        """Stops what is running, too."""
        self.close()
        for answer in list(self._running):
            answer.ready.put_nowait(refusal("shutting_down"))
            self._stop(answer)
        self.passing.stop()

    async def ended(self, seconds: float) -> bool:
        """Waits until no answer is being made, for ``seconds`` at most; returns whether that is so."""
        programs = [answer.program for answer in self._running if answer.program is not None]
        programs += self.passing.tasks
        return not programs or not (await asyncio.wait(programs, timeout=seconds))[1]

    def _begin(self, options: RequestOptions, prompt: Prompt) -> _Answer:
        """Starts the program of an answer that has been admitted."""
        job = self._requests.make(options.mode, options.lookahead, options.sampling, options.limits)
        answer = _Answer(job, _delivery(options, prompt, self.service), asyncio.Queue(), options, time.monotonic())
        answer.job.on_step = self._teller(answer, answer.ready.put_nowait)
        if options.trace:
            answer.job.on_event = answer.ready.put_nowait
        self._running.add(answer)
        answer.program = asyncio.create_task(self._make(prompt, answer))
        answer.program.add_done_callback(lambda done: self._ended(answer, done))
        return answer

    async def _make(self, prompt: Prompt, answer: _Answer) -> None:
        """The program, to its end."""
        try:
            ahead, target = answer.options.mode.ahead, self.roles["target"]
            if (conclusion := answer.options.conclusion) is not None:
                given = {"grammar": conclusion.grammar, "most": answer.job.limits.max_tokens}
                await self._concluding.answer(prompt.asked, answer.job, ahead, **given)
            elif self._operator_program is not None:
                await self._operator_program.answer(prompt.asked, answer.job, ahead)
            else:
                await run_program(answer_request, prompt.asked, answer.job, ahead, backend=target)
        except Cancelled:
            if not answer.delivery.stopped:
                raise
        finally:
            answer.costs = costs_of(answer.job.record, answer.delivery.tokens)

    def _ended(self, answer: _Answer, done: asyncio.Future[None]) -> None:
        """Once the runtimes are rid of the answer: its place is free."""
        answer.done = True
        self._running.discard(answer)
        self.admission.leave(time.monotonic() - answer.began)
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        trace, tokens = answer.job.record, answer.delivery.tokens
        self.metrics.ended(trace, tokens, answer.costs or costs_of(trace, tokens), self._degraded(answer))
        if error is None:
            self._finish(answer)
            return
        if not isinstance(error, LookaheadError | asyncio.CancelledError) or isinstance(error, ProgramError):
            log("internal error", logging.ERROR, error=type(error).__name__, where=where(error.__cause__ or error))
        # It keeps the frames that it came through, and with them the program's states.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        answer.ready.put_nowait(error)

    def _finish(self, answer: _Answer) -> None:
        """The end of an answer that went well, or of as much of it as there is to be."""
        if pieces := answer.delivery.rest():
            answer.ready.put_nowait(pieces)
        trace, delivery = answer.job.record, answer.delivery
        costs = answer.costs or costs_of(trace, delivery.tokens)
        summary = Summary.of(answer.options, trace, delivery, costs, self._degraded(answer))
        answer.ready.put_nowait(summary)

    def _degraded(self, answer: _Answer) -> bool:
        """Whether it went without draft or judge for a while, or altogether."""
        failed = not answer.job.drafts or bool(answer.job.record.failures)
        return answer.options.mode.ahead and (failed or self.health.disturbed(answer.began))

    def _teller(self, answer: _Answer, put: Callable[[list[Chunk]], None]) -> Callable[[StepRecord | None], None]:
        """Hears of each step as it is kept."""
        job, known = answer.job, 0

        def tell(step: StepRecord | None) -> None:
            nonlocal known
            if answer.stopping:
                raise Cancelled("stopped")
            ids, known = job.record.ids[known:], len(job.record.ids)
            own = ids if step is None else step.spoken(ids, self.roles["target"].ends)
            if pieces := answer.delivery.add(own, len(ids) - len(own)):
                put(pieces)
            if answer.delivery.stopped:
                answer.cut = True
                raise Cancelled("a stop string was written")

        return tell

    def _stop(self, answer: _Answer) -> None:
        """Again and again, until it has ended; a runtime that hangs takes no abort, and is hung up on."""
        answer.stopping = True
        if not answer.done:
            answer.job.stop()
            answer.stops += 1
            if answer.stops > HANG_UP_AFTER:
                for request in [branch.request for branch in answer.job.record.branches]:
                    if request is not None and request.cancelled:
                        request.close_connection()
            asyncio.get_running_loop().call_later(STOP_AGAIN, self._stop, answer)


def _distrusted(role: str, reason: str) -> None:
    log("judge not trusted", logging.WARNING, role=role, reason=reason)


def _delivery(options: RequestOptions, prompt: Prompt, service: Service) -> StreamText:
    inside = prompt.thinks or service.reasoning == "on"
    reasoning = Reasoning(inside, split=options.chat and service.reasoning != "off")
    return StreamText(prompt.decode, options.stops, reasoning)
