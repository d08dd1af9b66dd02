"""Self-consistency (arXiv 2203.11171): several samples of one prefix; the most frequent result
wins.
"""

from __future__ import annotations

from collections import Counter

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.frontend.dsl import converse
from lr_sglang.frontend.gen_options import lookahead
from lr_sglang.tasks.boxed import boxed, normal


@sgl.function
def self_consistency(s: ProgramState, messages: list[dict[str, str]], samples: int = 5) -> None:
    """Answers a conversation; ``s["votes"]`` counts the samples of each result.

    Args:
        samples: number of solutions, written in parallel; the prompt is prefilled once.
    """
    converse(s, messages)
    forks = s.fork(samples)
    for fork in forks:
        fork += lookahead("answer")
    texts = [fork["answer"] for fork in forks]
    results = [normal(boxed(text) or text) for text in texts]
    s["votes"] = Counter(results)
    winner = s["votes"].most_common(1)[0][0]  # of equal counts the first
    s["answer"] = texts[results.index(winner)]
