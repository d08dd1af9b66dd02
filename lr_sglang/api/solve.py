"""Lookahead reasoning from Python.

with lr.deployment("pocket") as d:          # three servers, until the end of the block
    print(lr.solve("...", deployment=d))    # and asolve, stream
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.api.deployment import STOP_AGAIN, OpenDeployment
from lr_sglang.api.runner import answer
from lr_sglang.config import ConfigModel, Limits, Lookahead, Sampling
from lr_sglang.engine.loop import call, elsewhere
from lr_sglang.errors import ConfigError, did_you_mean
from lr_sglang.modes import MODES, Mode
from lr_sglang.results import machine, record
from lr_sglang.results.record import Record
from lr_sglang.sglang_api.interpreter import SglFunction
from lr_sglang.steps.events import Event
from lr_sglang.steps.trace import StepRecord, Trace
from lr_sglang.tasks import Question
from lr_sglang.tasks.boxed import boxed
from lr_sglang.user_programs.program import Program

Asked = str | Sequence[Mapping[str, str]]
S = TypeVar("S", bound=ConfigModel)
_WITH_LAYER = {
    "lookahead": "lookahead+sd",
    "autoregressive": "sd",
}  # names for runtimes with a token layer
_OPTIONS = [name for kind in (Lookahead, Sampling, Limits) for name in kind.model_fields]


@dataclass(frozen=True)
class Solution:
    """One answered question. As a string it is the answer's text.

    Attributes:
        question: the user's last message.
        trace: the steps and branches of the answer.
        record: the JSON record of ``lr-sglang run``.
    """

    question: str
    trace: Trace = field(repr=False)
    record: Record = field(repr=False)

    @property
    def text(self) -> str:
        """The whole answer, its reasoning included."""
        return self.trace.text

    @property
    def answer(self) -> str | None:
        r"""The content of the last ``\boxed{}``; None if there is none."""
        return boxed(self.trace.text)

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """The steps of the answer, in order."""
        return tuple(self.trace.steps)

    @property
    def alpha(self) -> float | None:
        """Step acceptance rate; None if no draft was compared."""
        return self.trace.alpha

    @property
    def seconds(self) -> float:
        """Seconds from the question to the last step."""
        return self.trace.seconds

    def __str__(self) -> str:
        return self.text


@dataclass
class AnswerTask:
    """A question with checked options."""

    live: OpenDeployment
    messages: list[dict[str, str]]
    program: Program | None
    mode: Mode
    job: AnswerRequest

    async def run(self) -> Solution:
        """Answers the question, on the event loop of the deployment.

        Raises:
            LookaheadError: a runtime failed, or the job was stopped.
        """
        with self.live.answering(self.job):
            if self.mode.ahead and not self.live.given:
                await self.live.requests.prepare(self.job.lookahead)
            await answer(
                self.program,
                self.mode,
                self.messages,
                self.job,
                self.live.roles,
                self.live.backends,
            )
        asked, job = self.messages[-1]["content"], self.job
        config = {
            "program": self.program.name if self.program else self.mode.program,
            "lookahead": job.lookahead.to_dict() if self.mode.ahead else None,
            "sampling": job.sampling.to_dict(),
            "limits": job.limits.to_dict(),
        }
        made = record.make(
            Question(job.question, asked), self.mode.name, job, config, machine.versions()
        )
        return Solution(asked, job.record, made)


def resolve_request(
    live: OpenDeployment,
    question: Asked,
    program: str | SglFunction | None,
    mode: str,
    on_event: Callable[[Event], None] | None,
    options: dict[str, Any],
) -> AnswerTask:
    """Makes the task of a question from its options.

    Raises:
        ConfigError: no such option or mode here, the question is empty or invalid, or the
            deployment is not open.
    """
    if not isinstance(live, OpenDeployment):
        raise ConfigError(
            f"deployment: expected an open one, not {live!r:.80}",
            hint="with lr.deployment(...) as d:",
        )
    asked: Any = [{"role": "user", "content": question}] if isinstance(question, str) else question
    messages = (
        [dict(m) if isinstance(m, Mapping) else {} for m in asked]
        if isinstance(asked, Sequence)
        else []
    )
    said = [m.get("content") if isinstance(m.get("role"), str) else None for m in messages]
    if not said or not all(isinstance(text, str) and text.strip() for text in said):
        raise ConfigError(
            "the question is empty, or none", hint="a text, or messages with 'role' and 'content'"
        )
    loaded = Program.load(program) if program else None
    for name in options:
        if name not in _OPTIONS:
            hint = did_you_mean(name, _OPTIONS, f"one of {', '.join(sorted(_OPTIONS))}")
            if loaded is not None and name in loaded.function.arg_names:
                hint = f"it is the program's: program=NAME.bind({name}=...)"
            raise ConfigError(f"there is no option {name!r}", hint=hint)
    known = MODES.get(_WITH_LAYER.get(mode, mode) if live.roles["target"].token_layer else mode)
    if known is None:
        raise ConfigError(f"there is no mode {mode!r}", hint=f"one of {', '.join(MODES)}")
    live.requests.check_layer(known)
    config = live.config
    job = live.requests.make(
        known,
        _with(config.lookahead, options),
        _with(config.sampling, options),
        _with(config.limits, options),
        question=hashlib.sha256(repr(messages).encode("utf-8", "replace")).hexdigest()[:16],
        on_event=on_event,
    )
    return AnswerTask(live, messages, loaded, known, job)


def _with(settings: S, options: dict[str, Any]) -> S:
    """A copy with the options that are fields of it."""
    return settings.with_options(
        **{k: v for k, v in options.items() if k in type(settings).model_fields}
    )


def solve(
    question: Asked,
    *,
    deployment: OpenDeployment,
    program: str | SglFunction | None = None,
    mode: str = "lookahead",
    on_event: Callable[[Event], None] | None = None,
    **options: Any,
) -> Solution:
    """Answers one question.

    Args:
        question: a text, or a conversation: messages with ``role`` and ``content``.
        deployment: an open deployment, which several threads may use.
        program: as ``--program`` of ``lr-sglang run``, or an ``@sgl.function``.
        mode: as ``--mode`` of ``lr-sglang run``.
        on_event: called with each event, on the event loop, which waits for it.
        options: fields of ``Lookahead``, ``Sampling`` and ``Limits``, such as ``depth``,
            ``temperature``, ``max_tokens``; the defaults are the deployment's.

    Raises:
        ConfigError: there is no such option, mode or program, or the question is empty.
        LookaheadError: a runtime failed, or the deployment was closed.
    """
    return call(
        resolve_request(deployment, question, program, mode, on_event, options).run(),
        deployment.loop,
    )


async def asolve(
    question: Asked,
    *,
    deployment: OpenDeployment,
    program: str | SglFunction | None = None,
    mode: str = "lookahead",
    on_event: Callable[[Event], None] | None = None,
    **options: Any,
) -> Solution:
    """``solve`` for the caller's event loop; cancelling it stops the answer, on the servers too."""
    task = resolve_request(deployment, question, program, mode, on_event, options)
    return await elsewhere(task.run(), deployment.loop)


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
