"""SpecReason (arXiv 2504.07891): the draft writes, and the target rates each step instead of
writing its own.

The paper's rule: the target rates a drafted step from 0 to 9 in one token, and writes the step
itself where the rating is below a threshold; the first steps, which set the direction, may be the
target's. Ours are the words of the question, and that without a draft the target writes all steps.

It is cheaper than lookahead reasoning, because one token decides a step. But the target accepts any
step that it rates as correct, also one that it would not have written.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.frontend.dsl import converse
from lr_sglang.programs.common import ask_rating, rating_of, write_drafted


@sgl.function
def specreason(
    s: ProgramState,
    messages: list[dict[str, str]],
    threshold: int = 7,
    first: int = 0,
    most: int = 200,
) -> None:
    """Answers a conversation.

    Args:
        threshold: the lowest rating, 0 to 9, at which a drafted step is kept.
        first: steps that the target writes before the first drafted one.
        most: maximal number of steps.
    """
    converse(s, messages)
    write_drafted(s, lambda made: rating_of(ask_rating(made)) >= threshold, most, first)
