"""SpecCoT (Findings of EMNLP 2025, 1326): the draft writes several versions of a step, and the
target picks one or refuses all.

The paper's rule: the small model proposes candidates in parallel; the large one, in one question,
takes the best or writes the step itself. Ours: the target picks by reading, as SGLang's ``select``
does, the candidate with the highest mean log-probability, and refuses all if even that one is not
likely enough; it makes no plan before.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.frontend.dsl import confidence, converse, weigh
from lr_sglang.programs.common import Proposer, write_steps


@sgl.function
def spec_cot(
    s: ProgramState,
    messages: list[dict[str, str]],
    width: int = 3,
    least: float = 0.5,
    most: int = 200,
) -> None:
    """Answers a conversation.

    Args:
        width: versions of a step that the draft writes in parallel.
        least: the lowest probability of the picked version, 0 to 1, as the geometric mean over its
            tokens; below it the target writes the step.
        most: maximal number of steps.
    """
    converse(s, messages)
    draft = Proposer("draft")
    target = Proposer("target")

    def next_step(number: int) -> ProgramState:
        made = draft.drafts(s, width)
        read = [weigh(s, one["step"]) for one in made]
        likely = [confidence(one) for one in read]
        if likely and max(likely) >= least:
            return made[likely.index(max(likely))]
        return target.step(s)

    write_steps(s, next_step, most)
