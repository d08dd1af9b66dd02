"""SpecReason (arXiv 2504.07891): the draft writes, and the target rates each step instead of
writing its own.

It is cheaper than lookahead reasoning, because one token decides a step. But the target accepts any
step that it rates as correct, also one that it would not have written. Without a draft the target
writes all steps.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.errors import PromptTooLong
from lr_sglang.frontend.dsl import converse
from lr_sglang.programs.common import Proposer, ask_rating, ended, rating_of


@sgl.function
def specreason(
    s: ProgramState, messages: list[dict[str, str]], threshold: int = 7, most: int = 200
) -> None:
    """Answers a conversation.

    Args:
        threshold: the lowest rating, 0 to 9, at which a drafted step is kept.
        most: maximal number of steps.
    """
    converse(s, messages)
    draft, target = Proposer("draft"), Proposer("target")
    for number in range(most):
        made = draft.step(s) if draft.there(s) else None
        if (
            made is None
            or draft.failed(made)
            or not made["step"]
            or rating_of(ask_rating(made)) < threshold
        ):
            made = target.step(s)
        try:
            s += made["step"]
        except PromptTooLong:  # the context is full
            if number == 0:
                raise
            return
        if ended(made):
            return
