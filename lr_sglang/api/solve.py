"""Lookahead reasoning from Python.

with lr.deployment("pocket") as d:          # three servers, until the end of the block
    print(lr.solve("...", deployment=d))    # and asolve, stream, solve_many
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.api.deployment import OpenDeployment
from lr_sglang.api.runner import answer
from lr_sglang.api.solution import Solution
from lr_sglang.config import ConfigModel, Limits, Lookahead, Sampling
from lr_sglang.engine.loop import call, elsewhere
from lr_sglang.errors import ConfigError, LookaheadError, did_you_mean
from lr_sglang.modes import MODES, Mode
from lr_sglang.results import machine, record
from lr_sglang.sglang_api.interpreter import SglFunction
from lr_sglang.steps.events import Event
from lr_sglang.tasks import Question
from lr_sglang.user_programs.program import Program

Asked = str | Sequence[Mapping[str, str]]
S = TypeVar("S", bound=ConfigModel)
_WITH_LAYER = {
    "lookahead": "lookahead+sd",
    "autoregressive": "sd",
}  # names for runtimes with a token layer
_OPTIONS = [name for kind in (Lookahead, Sampling, Limits) for name in kind.model_fields]


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
            return self.solution()

    def solution(self, error: LookaheadError | None = None) -> Solution:
        """The solution so far; with the error if the answer failed."""
        asked, job = self.messages[-1]["content"], self.job
        config = {
            "program": self.program.name if self.program else self.mode.program,
            "lookahead": job.lookahead.to_dict() if self.mode.ahead else None,
            "sampling": job.sampling.to_dict(),
            "limits": job.limits.to_dict(),
        }
        made = record.make(
            Question(job.question, asked), self.mode.name, job, config, machine.versions(), error
        )
        return Solution(asked, job.record, made, error)


def resolve_request(
    live: OpenDeployment,
    question: Asked,
    program: str | SglFunction | Program | None,
    mode: str,
    on_event: Callable[[Event], None] | None,
    options: dict[str, Any],
    sample: int = 0,
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
    if not isinstance(program, Program):
        program = Program.load(program) if program else None
    for name in options:
        if name not in _OPTIONS:
            hint = did_you_mean(name, _OPTIONS, f"one of {', '.join(sorted(_OPTIONS))}")
            if program is not None and name in program.function.arg_names:
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
        sample=sample,
        on_event=on_event,
    )
    return AnswerTask(live, messages, program, known, job)


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


def solve_many(
    questions: Sequence[Asked],
    *,
    deployment: OpenDeployment,
    concurrency: int = 8,
    program: str | SglFunction | None = None,
    mode: str = "lookahead",
    on_event: Callable[[Event], None] | None = None,
    **options: Any,
) -> list[Solution]:
    """Answers many questions, ``concurrency`` at a time; returns their solutions in order.

    A repeated question is another sample. A failed solution has an ``error``, and the others
    continue. Arguments as for ``solve``.

    Raises:
        ConfigError: as ``solve``, before the first answer begins.
    """
    if isinstance(questions, str) or not isinstance(questions, Iterable):
        raise ConfigError("questions: expected a list of questions", hint="lr.solve(...) takes one")
    if not hasattr(concurrency, "__index__"):
        raise ConfigError(f"concurrency: expected a whole number, got {concurrency!r}")
    asked: Counter[str] = Counter()
    todo, known = [], Program.load(program) if program else None
    for question in questions:
        key = repr(question)
        todo.append(
            resolve_request(deployment, question, known, mode, on_event, options, asked[key])
        )
        asked[key] += 1
    return call(_solve_all(todo, max(1, concurrency)), deployment.loop)


async def _solve_all(todo: Sequence[AnswerTask], concurrency: int) -> list[Solution]:
    places = asyncio.Semaphore(concurrency)

    async def one(task: AnswerTask) -> Solution:
        async with places:
            try:
                return await task.run()
            except LookaheadError as error:
                return task.solution(error)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(task)) for task in todo]
    except BaseExceptionGroup as errors:  # of ``on_event``
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
