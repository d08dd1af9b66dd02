"""The baseline: the target alone."""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.algorithm.answer import answering
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.frontend.dsl import Conversation, Rendered, converse
from lr_sglang.programs.generations import write_alone


@sgl.function
async def autoregressive(
    s: ProgramState, messages: Conversation | Rendered, request: AnswerRequest
) -> None:
    """Answers a conversation by plain decoding (with the runtime's token layer, if it has one)."""
    converse(s, messages)
    async with answering(s, request) as answer:
        # once, unless it is long and streamed, or the runtime ends early
        while not answer.tree.complete:
            await write_alone(answer, answer.tree.room(answer.tree.root))
