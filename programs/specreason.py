"""SpecReason (arXiv 2504.07891): the draft writes, and the target rates each step instead of writing its own.

Cheaper than lookahead reasoning, for one token decides a step; and another thing: what the target accepts here is not
what it would have said, but what it finds right. While there is no draft, the target writes by itself.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.errors import PromptTooLong
from lr_sglang.frontend.dsl import converse
from lr_sglang.programs.common import Proposer, ask_rating, ended, rating_of


@sgl.function
def specreason(s: ProgramState, messages: list[dict[str, str]], threshold: int = 7, most: int = 200) -> None:
    """Answers a conversation.

    Args:
        threshold: the rating, 0 to 9, from which on a drafted step is kept.
        most: steps.
    """
    converse(s, messages)
    draft, target = Proposer("draft"), Proposer("target")
    for number in range(most):
        made = draft.step(s) if draft.there(s) else None
        if made is None or draft.failed(made) or not made["step"] or rating_of(ask_rating(made)) < threshold:
            made = target.step(s)
        try:
            s += made["step"]
        except PromptTooLong:  # the context is full
            if number == 0:
                raise
            return
        if ended(made):
            return
