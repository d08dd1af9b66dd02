"""ConfSpec (arXiv 2602.18447): the draft's own confidence decides; the target has the unsure steps.

The paper's rule: where the small model is confident its decision stands, and only unsure cases go
to the large model, with no third model that judges. Ours: the confidence is that with which the
draft wrote the step, the geometric mean of its tokens' probabilities (in the paper it is that of
the draft's verdict on the step), and the target writes an unsure step and is not asked about it.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.frontend.dsl import confidence, converse
from lr_sglang.programs.common import write_drafted


@sgl.function
def conf_spec(
    s: ProgramState, messages: list[dict[str, str]], sure: float = 0.9, most: int = 200
) -> None:
    """Answers a conversation.

    Args:
        sure: the lowest confidence, 0 to 1, at which a drafted step is kept.
        most: maximal number of steps.
    """
    converse(s, messages)
    write_drafted(s, lambda made: confidence(made, "step") >= sure, most, return_logprob=True)
