"""Runs many samples on started runtimes, several at a time, until all have ended or ``stop`` is
called.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import Any

from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.api.configuration import Plan
from lr_sglang.engine.loop import STOP_SECONDS, call, keep_what_is_imported
from lr_sglang.errors import Cancelled, ConfigError, LookaheadError, RuntimeDown
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import Conversation, Rendered, run_program
from lr_sglang.modes import MODES, Mode
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.results import record
from lr_sglang.results.record import Record
from lr_sglang.steps.token_text import TokenText
from lr_sglang.steps.trace import StepRecord
from lr_sglang.tasks.question import Work
from lr_sglang.tasks.task import messages
from lr_sglang.user_programs.lookahead_backend import backend_for_requests
from lr_sglang.user_programs.program import Program, perform
from lr_sglang.user_programs.request_maker import RequestMaker

PROGRAMS: Mapping[str, Any] = {"autoregressive": autoregressive, "lookahead": lookahead}


@dataclass(eq=False)
class Runner:
    """Makes samples on the runtimes' event loop.

    Args:
        roles: backends of started runtimes.
        plan: the settings of all samples.
        concurrency: number of samples at a time.
        asked: what was asked besides, for the records: ``prompt_suffix`` is appended to each
            question.
        versions: those that are written to the records.
        on_step: called with each step of each sample, on the event loop.
        keep: called in a thread with each record when its answer ends; returns the record that
            ``run`` yields.
        guesses: whether ``sd`` may be the guesses that a target with the token layer ``fed`` makes
            itself, as a baseline; else that mode is refused.

    Raises:
        ConfigError: the verifier lacks its runtime, or there is no such verifier or program.
    """

    roles: Mapping[str, RuntimeBackend]
    plan: Plan
    concurrency: int = 1
    asked: Mapping[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    on_step: Callable[[Work, StepRecord], None] | None = None
    keep: Callable[[Record], Record] | None = None
    guesses: bool = False

    def __post_init__(self) -> None:
        program = self.plan.program
        prompt = self.plan.deployment.judge_prompt
        self._loop = self.roles["target"].loop
        self._config = cache(partial(self.plan.configured, **self.asked))
        self._program = Program.load(program) if program else None
        self._requests = RequestMaker(self.roles, prompt, policy.RunStatistics())

    def run(
        self, work: Sequence[Work], idle: Callable[[], None] = lambda: None
    ) -> Generator[Record, None, None]:
        """Makes the samples; yields their records as they end, in the caller's thread.

        A sample that fails gives a record with its error, and the others continue. Closing the
        generator stops the samples in progress, on the runtimes too.

        Args:
            idle: called about every second while the caller waits.

        Raises:
            RuntimeDown: the target is down; samples in progress get no record.
            ConfigError: the deployment lacks what the mode needs.
        """
        self.prepare(item.mode for item in work)
        ended = SimpleQueue[Record | None]()
        made = asyncio.run_coroutine_threadsafe(self._all(deque(work), ended), self._loop)
        try:
            while (record := _next(ended, idle)) is not None:
                yield record
            made.result()
        finally:
            if not made.done() and made.cancel():
                with suppress(Empty):
                    while ended.get(timeout=2 * STOP_SECONDS) is not None:
                        pass

    def check(self, modes: Iterable[str]) -> None:
        """Checks that the runtimes meet the needs of these modes: a token layer or none, a draft,
        the verifier and its runtime.

        Raises:
            ConfigError: they do not.
        """
        for mode in dict.fromkeys(MODES[name] for name in modes):
            look = self.plan.lookahead(mode.name)
            self._requests.check(mode, look.verifier, guesses=self.guesses)
            if mode.ahead:
                self._requests.verifier(look.verifier)

    def prepare(self, modes: Iterable[str]) -> None:
        """Checks the modes, and prepares the first answer.

        Raises:
            ConfigError: as ``check``.
        """
        modes = dict.fromkeys(modes)
        self.check(modes)
        for mode in modes:
            if MODES[mode].ahead:
                call(self._requests.prepare(self.plan.lookahead(mode)), self._loop)
        keep_what_is_imported()

    async def _all(self, todo: deque[Work], ended: SimpleQueue[Record | None]) -> None:
        """Makes the samples, ``concurrency`` at a time, and puts their records; None at the end."""

        async def make() -> None:
            while todo:
                made = await self._make(todo.popleft())
                ended.put(await asyncio.to_thread(self.keep, made) if self.keep else made)

        tasks = [asyncio.create_task(make()) for _ in range(min(self.concurrency, len(todo) or 1))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            todo.clear()
            for request in self._requests.running:
                request.stop()
            await asyncio.wait(tasks, timeout=STOP_SECONDS)  # grading goes on to its end
            for task in tasks:
                task.cancel()
            ended.put(None)

    async def _make(self, item: Work) -> Record:
        deployment = self.plan.deployment
        tell = self.on_step
        request = self._requests.make(
            MODES[item.mode],
            self.plan.lookahead(item.mode),
            deployment.sampling,
            deployment.limits,
            question=item.question.id,
            sample=item.sample,
            on_step=(lambda step: tell(item, step)) if tell else None,
        )
        about = self._config(item.mode), self.versions
        try:
            asked = messages(item.question.question, self.asked.get("prompt_suffix", ""))
            await answer(self._program, MODES[item.mode], asked, request, self._requests)
        except LookaheadError as error:
            is_down = isinstance(error, RuntimeDown) and error.role == "target"
            if is_down or isinstance(error, Cancelled | ConfigError):
                raise
            return record.make_record(item.question, item.mode, request, *about, error)
        return record.make_record(item.question, item.mode, request, *about)


def _next(ended: SimpleQueue[Record | None], idle: Callable[[], None]) -> Record | None:
    while True:
        with suppress(Empty):
            return ended.get(timeout=1.0)
        idle()


async def answer(
    program: Program | None,
    mode: Mode,
    asked: Conversation | Rendered | TokenText,
    request: AnswerRequest,
    requests: RequestMaker,
) -> None:
    """Answers a conversation by a program, or the mode's own program, into ``request.trace``.

    Args:
        asked: the conversation, or its prompt as each runtime renders it.
        request: made by ``requests``, which has it among those that are running meanwhile.

    Raises:
        LookaheadError: a runtime or the program failed, or the request was stopped.
    """
    requests.running.add(request)
    try:
        if program is not None:
            backend = backend_for_requests(requests, request.lookahead, mode.ahead)
            await perform(program, asked, request, backend)
        else:
            await run_program(
                PROGRAMS[mode.program], asked, request, backend=requests.roles["target"]
            )
    finally:
        requests.running.discard(request)
