"""The baseline: the target alone, in one generation."""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.answer import Answer
from lr_sglang.dsl import converse
from lr_sglang.job import Job


@sgl.function
def autoregressive(s: ProgramState, messages: list[dict[str, str]], job: Job) -> None:
    """Answers a conversation by plain decoding (with the runtime's token layer, if it has one)."""
    converse(s, messages)
    with Answer(s, job) as answer:
        answer.write_to_the_end()
