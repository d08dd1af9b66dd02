"""What programs of the gallery share: whether a state has come to its end, and a rating by the target."""

from __future__ import annotations

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.programs.rate import OPENING, QUESTION

# For whole solutions; the digit is asked for as in ``rate``.
SOLUTION = (
    "Check the solution above. Are its facts and its calculations correct, and does it answer the question? Do not "
    "rate its wording. Give one digit, from 0 (certainly wrong) to 9 (certainly right)."
)


def ended(s: ProgramState, name: str = "step") -> bool:
    """Whether the model ended its turn with what it generated last under that name."""
    s[name]  # where it has failed, the reader gets the named error
    finish = s.get_meta_info(name)["finish_reason"]
    return finish["type"] == "stop" and isinstance(finish.get("matched"), int)


def ask_rating(s: ProgramState, question: str = QUESTION) -> ProgramState:
    """Asks the target, in a fork, for a digit about what the assistant has said; ``rating_of`` waits for it."""
    asked = s.fork(1)[0]
    asked += sgl.assistant_end()
    asked += sgl.user(question)
    asked += sgl.assistant_begin()
    asked += OPENING
    asked += sgl.gen("rating", max_tokens=1, temperature=0.0)
    return asked


def rating_of(asked: ProgramState) -> int:
    """The digit; an answer that is none counts as 0."""
    said = asked["rating"].strip()
    return int(said) if said.isascii() and said.isdigit() else 0
