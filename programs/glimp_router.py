"""GlimpRouter (arXiv 2601.05110): the first token of a step tells who should write it.

The paper's rule: the draft writes only the first token of each step; where its distribution has
little entropy the draft writes the step, else the target. Nothing is verified. Ours: the entropy is
that of the likeliest tokens at the temperature of the run, and whoever writes the step writes its
first token anew.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.frontend.dsl import converse, entropy, fork
from lr_sglang.programs.common import Proposer, write_steps

LIKELIEST = 20  # tokens whose probabilities are asked for


@sgl.function
def glimp_router(
    s: ProgramState, messages: list[dict[str, str]], unsure: float = 0.5, most: int = 200
) -> None:
    """Answers a conversation.

    Args:
        unsure: the entropy of a first token, in nats, above which the target writes the step.
        most: maximal number of steps.
    """
    converse(s, messages)
    draft = Proposer("draft")
    target = Proposer("target")

    def is_easy() -> bool:
        glimpse = fork(s, "draft")
        glimpse += sgl.gen("first", max_tokens=1, return_logprob=True, top_logprobs_num=LIKELIEST)
        return not draft.failed(glimpse, "first") and entropy(glimpse, "first") <= unsure

    def next_step(number: int) -> ProgramState:
        for made in draft.drafts(s) if draft.there(s) and is_easy() else ():
            return made
        return target.step(s)

    write_steps(s, next_step, most)
