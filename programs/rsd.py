"""RSD, reward-guided speculative decoding (arXiv 2501.19324): a score decides on each drafted step.

The paper's rule: a process reward model scores a drafted step after its prefix; the target writes
the step itself where the score is below a threshold. Ours: without a reward model the score is the
target's probability of the step, the geometric mean over its tokens. With ``by=judge`` it is what
the reward model on the judge's runtime says, on that model's own scale.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.frontend.dsl import confidence, converse, reward, weigh
from lr_sglang.programs.common import write_drafted


@sgl.function
def rsd(
    s: ProgramState,
    messages: list[dict[str, str]],
    threshold: float = 0.7,
    by: str = "target",
    most: int = 200,
) -> None:
    """Answers a conversation.

    Args:
        threshold: the lowest score at which a drafted step is kept; the paper's is 0.7.
        by: the role that scores: ``target`` by likelihood, another as a reward model.
        most: maximal number of steps.
    """
    converse(s, messages)

    def keeps(made: ProgramState) -> bool:
        score = confidence(weigh(s, made["step"])) if by == "target" else reward(made, by)
        return score >= threshold

    write_drafted(s, keeps, most)
