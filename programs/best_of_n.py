"""Best of n: several solutions by lookahead reasoning; the answer is the one that the target rates
highest.
"""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.frontend.dsl import converse
from lr_sglang.frontend.gen_options import lookahead
from lr_sglang.programs.common import RATE_SOLUTION, ask_rating, rating_of


@sgl.function
def best_of_n(s: ProgramState, messages: list[dict[str, str]], samples: int = 4) -> None:
    """Answers a conversation; ``s["ratings"]`` has the target's rating of each sample, 0 to 9.

    Args:
        samples: number of solutions, written in parallel.
    """
    converse(s, messages)
    forks = s.fork(samples)
    for fork in forks:
        fork += lookahead("answer")
    asked = [ask_rating(fork, RATE_SOLUTION) for fork in forks]
    s["ratings"] = [rating_of(one) for one in asked]
    best = s["ratings"].index(max(s["ratings"]))  # of equal ratings the first
    s["answer"] = forks[best]["answer"]
