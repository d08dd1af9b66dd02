"""The target's opinion of a drafted step: a one-token rating (SpecReason)."""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.frontend.dsl import fork
from lr_sglang.steps.step import Step

# SpecReason (arXiv 2504.07891) asks for a rating of the last step from 0 to 9; the wording is ours.
RATE_STEP = (
    "Look at the last step of the solution so far, and at nothing else. Is it right: are its "
    "facts and its "
    "calculations correct, and does it follow from what stands before it? Do not rate its "
    "wording or whether it was "
    "needed. Give one digit, from 0 (certainly wrong) to 9 (certainly right)."
)
OPENING = "The digit is "


def rate(s: ProgramState, draft: Step) -> ProgramState:
    """Asks for a digit, in a user turn after the step."""
    state = fork(s, "target")
    state += draft.tokens()
    return ask_digit(state)


def ask_digit(s: ProgramState, question: str | None = None) -> ProgramState:
    """Asks for a digit about the assistant's text, by default about its last step."""
    s += sgl.assistant_end()
    s += sgl.user(question or RATE_STEP)
    s += sgl.assistant_begin()
    s += OPENING
    s += sgl.gen("rating", max_tokens=1, temperature=0.0)
    return s
