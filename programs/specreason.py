"""SpecReason (arXiv 2504.07891): the draft writes, and the target rates each step instead of writing its own.

Cheaper than lookahead reasoning, for one token decides a step; and another thing: what the target accepts here is not
what it would have said, but what it finds right.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.dsl import converse, fork, on, step
from lr_sglang.programs.common import ask_rating, ended, rating_of


@sgl.function
def specreason(s: ProgramState, messages: list[dict[str, str]], threshold: int = 7, most: int = 200) -> None:
    """Answers a conversation.

    Args:
        threshold: the rating, 0 to 9, from which on a drafted step is kept.
        most: steps.
    """
    converse(s, messages)
    for _ in range(most):
        draft = fork(s, "draft")
        draft += step("step")
        finished = ended(draft)
        if draft["step"] and rating_of(ask_rating(on(draft, "target"))) >= threshold:
            s += draft["step"]
        else:
            s += step("step")
            finished = ended(s)
        if finished:
            return
