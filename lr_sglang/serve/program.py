"""The SGLang program that answers one request."""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.answer import Answer
from lr_sglang.dsl import converse
from lr_sglang.job import Job
from lr_sglang.programs.lookahead import accept, asynchronous, expand, synchronous


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
