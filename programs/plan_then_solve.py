"""Plan-and-solve (arXiv 2305.04091): a short plan first, then the solution that follows it, in one
conversation.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.frontend.dsl import converse
from lr_sglang.frontend.gen_options import lookahead

PLAN = "First write a short plan for solving this, one step a line. Do not calculate anything yet."
SOLVE = (
    "Now carry out the plan, step by step, and give the final answer as the question asks for it."
)


@sgl.function
def plan_then_solve(
    s: ProgramState, messages: list[dict[str, str]], plan_tokens: int = 512
) -> None:
    """Answers a conversation; ``s["plan"]`` is the plan.

    Args:
        plan_tokens: maximal tokens of the plan.
    """
    *before, last = messages
    converse(s, [*before, {**last, "content": f"{last['content']}\n\n{PLAN}"}])
    s += lookahead("plan", max_tokens=plan_tokens)
    s += sgl.assistant_end()
    s += sgl.user(SOLVE)
    s += sgl.assistant(lookahead("answer", show=True))
