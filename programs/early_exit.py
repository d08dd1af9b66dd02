"""Early exit (Dynasor, arXiv 2412.20993; SpecExit, 2509.24248): thinking ends when the answer is
certain.

Dynasor's rule: every few tokens a copy of the state is asked for the answer now; when the last
answers are equal, the thinking ends with that answer. Ours are the words of the question, and that
each stretch ends with a step. The thinking is lookahead reasoning, whose gain multiplies with that
of an early end.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.frontend.dsl import backend_of, converse, fork, step
from lr_sglang.frontend.gen_options import lookahead
from lr_sglang.programs.common import ended_turn, tokens_left
from lr_sglang.steps.step import DELIMITER
from lr_sglang.tasks.boxed import normal

NOW = "So the answer is \\boxed{"


@sgl.function
def early_exit(
    s: ProgramState,
    messages: list[dict[str, str]],
    every: int = 64,
    agree: int = 3,
    tokens: int = 32,
) -> None:
    """Answers a conversation; ``s["answers"]`` has what was answered early, in order.

    Args:
        every: tokens of thinking, and the rest of a step, between two questions.
        agree: how many of the last answers must be equal.
        tokens: maximal tokens of an early answer.
    """
    converse(s, messages)
    tokenizer = backend_of(s, "target").tokenizer
    marks = tokenizer.thinking
    s["answers"] = answers = list[str]()
    start = len(s.text())
    while True:
        s += lookahead("thought", max_tokens=every, show=True)
        if s.get_meta_info("thought")["finish_reason"]["type"] != "length":
            return
        if not s["thought"].endswith(DELIMITER) and tokens_left(s) > 0:
            s += step("rest")
            if ended_turn(s, "rest"):
                return
        if tokens_left(s) <= len(NOW):  # the context is full: a token has a character or more
            return
        if marks.closes in s.text()[start:]:  # the model concludes by itself
            s += lookahead("conclusion", show=True)
            return
        now = fork(s, "target")
        now += NOW
        now += sgl.gen("now", max_tokens=tokens, stop="}", temperature=0.0)
        answers.append(normal(now["now"]))
        if answers[-1] and answers[-agree:] == [answers[-1]] * agree:
            s += f"{marks.closes}{DELIMITER}" if marks.opens in tokenizer.template else ""
            s += f"{NOW}{now['now']}}}."
            return
