"""What lookahead reasoning can gain: the paper's formulas, ours for a judge that takes time, and a planner.

``docs/theory.md`` has the formulas in print, with their conditions and the derivation of what is ours.
"""

from lr_sglang.theory.judged import answer_time, any_of, branches, deepest_useful, one_of, speedup
from lr_sglang.theory.measured import Measured, measure, token_acceptance
from lr_sglang.theory.paper import (
    Theorem,
    bound,
    draft_limited,
    expected_run,
    f_async,
    f_sync,
    g,
    h,
    k1_of,
    parallel,
    s1,
    s2,
    theorem3,
    theorem4,
)
from lr_sglang.theory.planner import Case, Choice, Split, Tokens, best_depth, best_split, combined

__all__ = [
    "Case",
    "Choice",
    "Measured",
    "Split",
    "Theorem",
    "Tokens",
    "answer_time",
    "any_of",
    "best_depth",
    "best_split",
    "bound",
    "branches",
    "combined",
    "deepest_useful",
    "draft_limited",
    "expected_run",
    "f_async",
    "f_sync",
    "g",
    "h",
    "k1_of",
    "measure",
    "one_of",
    "parallel",
    "s1",
    "s2",
    "speedup",
    "theorem3",
    "theorem4",
    "token_acceptance",
]
