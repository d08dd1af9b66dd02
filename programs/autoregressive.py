"""The baseline: the target alone, in one generation."""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.answer import Answer
from lr_sglang.job import Job


@sgl.function
def autoregressive(s: ProgramState, messages: list[dict[str, str]], job: Job) -> None:
    """Answers a conversation by plain decoding (with the runtime's token layer, if it has one)."""
    for message in messages:
        s += getattr(sgl, message["role"])(message["content"])
    s += sgl.assistant_begin()
    with Answer(s, job) as answer:
        answer.write_to_the_end()
