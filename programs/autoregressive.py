"""The baseline: the target alone, in one generation."""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.algorithm.answer import answering
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.frontend.dsl import converse, fork


@sgl.function
async def autoregressive(
    s: ProgramState, messages: list[dict[str, str]], job: AnswerRequest
) -> None:
    """Answers a conversation by plain decoding (with the runtime's token layer, if it has one)."""
    converse(s, messages)
    async with answering(s, job) as answer:
        root = answer.tree.root
        target = fork(s, "target")
        answer.watch(target, root)
        target += answer.gen(root, "target", answer.tree.budget, name="answer")
        await answer.keep_whole()
