"""The SGLang program that answers one request: ours, or one that the operator has given."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.answer import Answer
from lr_sglang.backend import RuntimeBackend
from lr_sglang.config import Lookahead
from lr_sglang.dsl import converse
from lr_sglang.frontend import LookaheadBackend
from lr_sglang.job import Job
from lr_sglang.policy import Experience
from lr_sglang.program import Program, perform
from lr_sglang.programs.lookahead import accept, asynchronous, expand, synchronous
from lr_sglang.runner import slots
from lr_sglang.serve.settings import Service


@sgl.function
def answer_request(s: ProgramState, asked: list[dict[str, str]] | str, job: Job, ahead: bool) -> None:
    """Answers a conversation, or goes on with a raw prompt; with lookahead or by plain decoding."""
    if isinstance(asked, str):
        s += asked
    else:
        converse(s, asked)
    with Answer(s, job) as answer:
        if not ahead:
            step_by_step(answer)
        elif job.lookahead.schedule == "async":
            asynchronous(answer)
        else:
            synchronous(answer)


def step_by_step(answer: Answer) -> None:
    """Plain decoding by the target, a request for each step: so that it streams, and can be stopped between steps."""
    while not answer.ended:
        expand(answer, 0)
        answer.first_done()
        accept(answer)


class Given:
    """The program that an operator has given (``--program``).

    Raises:
        ConfigError: there is no such program.
    """

    def __init__(self, roles: Mapping[str, RuntimeBackend], service: Service, experience: Experience) -> None:
        self._roles, self._service, self._experience = roles, service, experience
        self._program = Program.load(service.program)
        self._backend = lru_cache(64)(self._make_backend)

    def answer(self, messages: list[dict[str, str]], job: Job, ahead: bool) -> None:
        """Runs it. Only a program that is written on the job is heard step by step; else the answer comes at the end.

        Raises:
            ProgramError: it raised something, or left no answer. LookaheadError: as any answer.
        """
        tell: Any = job.on_step
        job.on_step = tell if self._program.takes_job else None
        perform(self._program, messages, job, self._backend(job.lookahead, ahead))
        if job.on_step is None and tell is not None and job.record.ids:
            tell(None)  # it goes by the tokens of the record

    def _make_backend(self, look: Lookahead, ahead: bool) -> LookaheadBackend:
        service = self._service
        share = slots(self._roles, look, service.concurrency)
        known = self._experience
        return LookaheadBackend(
            self._roles, look, judge_prompt=service.judge_prompt, ahead=ahead, slots=share, experience=known
        )
