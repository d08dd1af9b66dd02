"""Lookahead reasoning from Python.

with lr.deployment("pocket") as d:          # three servers, up as long as the block
    print(lr.solve("...", deployment=d))    # and asolve, stream, solve_many
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from lr_sglang.api.deployment import OpenDeployment
from lr_sglang.api.resolve import AnswerTask, Asked, resolve_request
from lr_sglang.api.solution import Solution
from lr_sglang.api.stream import Stream
from lr_sglang.engine.loop import call, elsewhere
from lr_sglang.errors import LookaheadError
from lr_sglang.sglang_api.interpreter import SglFunction
from lr_sglang.steps.events import Event
from lr_sglang.user_programs.program import Program

__all__ = ["Solution", "Stream", "asolve", "solve", "solve_many", "stream"]


def _loaded(program: str | SglFunction | None) -> Program | None:
    return Program.load(program) if program else None


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
        deployment: that is open; any number of threads may use it.
        program: what answers, as ``--program`` says it, or an ``@sgl.function``.
        mode: as ``--mode`` of ``lr-sglang run``.
        on_event: called with each event, on the event loop, which waits for it.
        options: fields of ``Lookahead``, ``Sampling`` and ``Limits``, such as ``depth``, ``temperature``,
            ``max_tokens``; for the others the deployment's hold.

    Raises:
        ConfigError: there is no such option, mode or program, or the question is empty.
        LookaheadError: a runtime failed, or the deployment was closed.
    """
    return call(resolve_request(deployment, question, _loaded(program), mode, on_event, options).run(), deployment.loop)


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
    task = resolve_request(deployment, question, _loaded(program), mode, on_event, options)
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

    A question that is repeated is another sample. A solution that failed has its ``error``, and the others continue.
    Arguments as for ``solve``.

    Raises:
        ConfigError: as ``solve``, before anything runs.
    """
    asked: Counter[str] = Counter()
    todo, known = [], _loaded(program)
    for question in questions:
        key = repr(question)
        todo.append(resolve_request(deployment, question, known, mode, on_event, options, asked[key]))
        asked[key] += 1
    return call(_solve_all(todo, max(1, concurrency)), deployment.loop)


async def _solve_all(todo: Sequence[AnswerTask], concurrency: int) -> list[Solution]:
    places = asyncio.Semaphore(concurrency)

    async def one(task: AnswerTask) -> Solution:
        async with places:
            try:
                return await task.run()
            except LookaheadError as error:
                return task.failed(error)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(task)) for task in todo]
    return [task.result() for task in tasks]


def stream(question: Asked, *, deployment: OpenDeployment, **given: Any) -> Stream:
    """The steps of an answer as they are kept, with ``for`` or with ``async for``. Arguments as for ``solve``.

    The steps of a program come at its end, when it is known which generations are in its answer; earlier only those of
    ``lookahead(show=True)``, and of programs that run on their answer's ``AnswerRequest``.

    Raises:
        ConfigError: as ``solve``.
    """
    program, on_event = _loaded(given.pop("program", None)), given.pop("on_event", None)
    mode = given.pop("mode", "lookahead")
    return Stream(resolve_request(deployment, question, program, mode, on_event, given))
