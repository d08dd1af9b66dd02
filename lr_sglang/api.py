"""Lookahead reasoning from Python.

with lr.deployment("pocket") as d:          # three servers, up as long as the block
    print(lr.solve("...", deployment=d))    # and asolve, stream, solve_many
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from queue import SimpleQueue
from typing import Any

from sglang.lang.ir import SglFunction

from lr_sglang import verifiers
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.events import Event
from lr_sglang.job import Job
from lr_sglang.live import STOP_AGAIN, Live
from lr_sglang.modes import MODES, Mode
from lr_sglang.program import Program, let_go, perform
from lr_sglang.results import machine, record
from lr_sglang.runner import PROGRAMS
from lr_sglang.solution import Solution
from lr_sglang.tasks import Question
from lr_sglang.trace import StepRecord

__all__ = ["Solution", "Stream", "asolve", "solve", "solve_many", "stream"]

Asked = str | Sequence[Mapping[str, str]]
_WITH_LAYER = {"lookahead": "lookahead+sd", "autoregressive": "sd"}  # what it is where the runtime has a token layer
_OPTIONS = {field.name: kind for kind in (Lookahead, Sampling, Limits) for field in fields(kind)}


@dataclass
class _Task:
    """One question to a deployment, settled as far as it can be before anything runs."""

    live: Live
    messages: list[dict[str, str]]
    program: Program | None
    mode: Mode
    job: Job

    def run(self) -> Solution:
        """Answers it.

        Raises:
            LookaheadError: a runtime failed, or the job was stopped.
        """
        with self.live.answering(self.job):
            if self.program is None:
                target = self.live.roles["target"]
                try:
                    PROGRAMS[self.mode.program].run(self.messages, self.job, backend=target)
                except BaseException as error:
                    let_go(error)
                    raise
                return self._solution(record.make)
            backend = self.live.backend_for(self.job.lookahead, self.mode.ahead)
            perform(self.program, self.messages, self.job, backend)
            return self._solution(record.make)

    def failed(self, error: LookaheadError) -> Solution:
        """As much of it as there is."""
        return self._solution(lambda q, mode, job, *rest: record.make_failed(q, mode, job, error, *rest), error)

    def _solution(self, make: Callable[..., record.Record], error: LookaheadError | None = None) -> Solution:
        asked, job = self.messages[-1]["content"], self.job
        config = {
            "program": self.program.name if self.program else self.mode.program,
            "lookahead": job.lookahead.to_dict() if self.mode.ahead else None,
            "sampling": job.sampling.to_dict(),
            "limits": job.limits.to_dict(),
        }
        made = make(Question(job.question, asked), self.mode.name, job, config, machine.versions())
        return Solution(asked, job.record, made, error)


def _task(
    live: Live,
    question: Asked,
    program: Program | None,
    mode: str,
    on_event: Callable[[Event], None] | None,
    options: dict[str, Any],
    sample: int = 0,
) -> _Task:
    messages = [{"role": "user", "content": question}] if isinstance(question, str) else [dict(m) for m in question]
    said = [m.get("content") if isinstance(m.get("role"), str) else None for m in messages]
    if not said or not all(isinstance(text, str) and text.strip() for text in said):
        raise ConfigError("the question is empty", hint="a text, or messages with 'role' and 'content'")
    for name in options:
        if name not in _OPTIONS:
            near = get_close_matches(name, _OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(sorted(_OPTIONS))}"
            raise ConfigError(f"there is no option {name!r}", hint=hint)
    known = MODES.get(_WITH_LAYER.get(mode, mode) if live.roles["target"].token_layer else mode)
    if known is None:
        raise ConfigError(f"there is no mode {mode!r}", hint=f"one of {', '.join(MODES)}")
    if known.ahead and "draft" not in live.roles:
        raise ConfigError("lookahead reasoning needs a draft runtime", hint='draft="...", or mode="autoregressive"')
    config = live.config
    look = known.lookahead(config.lookahead.replace(**_of(Lookahead, options)))
    job = Job(
        lookahead=look if known.ahead else Lookahead(),
        sampling=known.sampling(config.sampling.replace(**_of(Sampling, options))),
        limits=config.limits.replace(**_of(Limits, options)),
        verifier=live.verifier(look.verifier) if known.ahead else None,
        fast=verifiers.fast(look, live.roles) if known.ahead else None,
        question=hashlib.sha256(repr(messages).encode("utf-8", "replace")).hexdigest()[:16],
        sample=sample,
        experience=live.experience(look),
        on_event=on_event,
    )
    return _Task(live, messages, program, known, job)


def _loaded(program: str | SglFunction | None) -> Program | None:
    return Program.load(program) if program else None


def _of(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if _OPTIONS[name] is kind}


def solve(
    question: Asked,
    *,
    deployment: Live,
    program: str | SglFunction | None = None,
    mode: str = "lookahead",
    on_event: Callable[[Event], None] | None = None,
    **options: Any,
) -> Solution:
    """Answers one question.

    Args:
        question: a text, or a conversation: messages with ``role`` and ``content``.
        deployment: that is open; any number of threads may use it.
        program: what answers, as ``--program`` says it, or an ``@sgl.function``.
        mode: as ``--mode`` of ``lr-sglang run``.
        on_event: told of everything that happens, in the program's threads.
        options: fields of ``Lookahead``, ``Sampling`` and ``Limits``, such as ``depth``, ``temperature``,
            ``max_tokens``; for the others the deployment's hold.

    Raises:
        ConfigError: there is no such option, mode or program, or the question is empty.
        LookaheadError: a runtime failed, or the deployment was closed.
    """
    return _task(deployment, question, _loaded(program), mode, on_event, options).run()


async def asolve(question: Asked, *, deployment: Live, **given: Any) -> Solution:
    """``solve`` for an event loop; cancelling it stops the answer, on the servers too."""
    steps = stream(question, deployment=deployment, **given)
    async for _ in steps:
        pass
    return steps.solution


def solve_many(
    questions: Sequence[Asked],
    *,
    deployment: Live,
    concurrency: int = 8,
    program: str | SglFunction | None = None,
    mode: str = "lookahead",
    on_event: Callable[[Event], None] | None = None,
    **options: Any,
) -> list[Solution]:
    """Answers many questions, some at a time, and gives their solutions in order. The same one again is another sample.

    One that fails has its ``error``, and the others go on. Arguments as for ``solve``.

    Raises:
        ConfigError: as ``solve``, before anything runs.
    """
    asked: Counter[str] = Counter()
    todo, known = [], _loaded(program)
    for question in questions:
        key = repr(question)
        todo.append(_task(deployment, question, known, mode, on_event, options, asked[key]))
        asked[key] += 1

    def one(task: _Task) -> Solution:
        try:
            return task.run()
        except LookaheadError as error:
            return task.failed(error)

    with ThreadPoolExecutor(max(1, concurrency), thread_name_prefix="lr-solve") as pool:
        futures = [pool.submit(one, task) for task in todo]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            while not all(future.done() for future in futures):
                for task in todo:
                    task.job.stop()
                time.sleep(STOP_AGAIN)
            raise


def stream(question: Asked, *, deployment: Live, **given: Any) -> Stream:
    """The steps of an answer as they are kept, with ``for`` or with ``async for``. Arguments as for ``solve``.

    Of a program they come at the end, for until then it is not known which of what it generates is the answer; unless
    it says so (``lookahead(show=True)``), or is written on its answer's ``Job``.

    Raises:
        ConfigError: as ``solve``.
    """
    program, heard = _loaded(given.pop("program", None)), given.pop("on_event", None)
    mode = given.pop("mode", "lookahead")
    return Stream(_task(deployment, question, program, mode, heard, given))


class Stream:
    """The steps of one answer, once. Leaving the loop early stops the answer, on the servers too."""

    def __init__(self, task: _Task) -> None:
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
