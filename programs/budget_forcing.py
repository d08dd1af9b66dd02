"""Budget forcing (s1, arXiv 2501.19393): an early end of the thinking becomes "Wait", a budget ends
the thinking.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.frontend.dsl import backend_of, converse
from lr_sglang.frontend.gen_options import lookahead
from lr_sglang.programs.common import tokens_left
from lr_sglang.steps.step import DELIMITER


@sgl.function
def budget_forcing(
    s: ProgramState,
    messages: list[dict[str, str]],
    waits: int = 1,
    most: int = 4096,
    word: str = "Wait",
) -> None:
    """Answers a conversation. Without an end of the thinking the whole answer counts as thinking.

    Args:
        waits: how often ``word`` replaces the end of the thinking.
        most: maximal tokens of thinking.
    """
    converse(s, messages)
    left = most
    end = backend_of(s, "target").tokenizer.thinking.closes
    for turn in range(waits + 1):
        s += lookahead("thought", max_tokens=left, stop=end, show=True)
        thought = s["thought"]
        meta = s.get_meta_info("thought")
        left -= meta["completion_tokens"]
        out = meta["finish_reason"]["type"] == "length" or left <= 0
        marked = meta["finish_reason"].get("matched") == end
        if out or turn == waits:
            break
        s += ("" if thought.endswith("\n") else DELIMITER) + word
    if marked or out:
        s += f"\n{end}{DELIMITER}"
        if tokens_left(s) > 0:  # otherwise the context is full
            s += lookahead("conclusion", show=True)
