"""Self-consistency (arXiv 2203.11171): many samples of one prefix, and the answer that most of them come to."""

from __future__ import annotations

from collections import Counter

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.frontend.dsl import converse
from lr_sglang.frontend.gen_options import lookahead
from lr_sglang.tasks.boxed import boxed, normal


@sgl.function
def self_consistency(s: ProgramState, messages: list[dict[str, str]], samples: int = 5) -> None:
    """Answers a conversation; ``s["votes"]`` has how many samples came to which answer.

    Args:
        samples: that are written side by side, by lookahead reasoning; the prompt is prefilled once.
    """
    converse(s, messages)
    forks = s.fork(samples)
    for fork in forks:
        fork += lookahead("answer")
    texts = [fork["answer"] for fork in forks]
    results = [normal(boxed(text) or text) for text in texts]
    s["votes"] = Counter(results)
    winner = s["votes"].most_common(1)[0][0]  # of equals, the first
    s["answer"] = texts[results.index(winner)]
