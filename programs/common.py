"""Helpers of the programs in this folder: proposing a step, recognising the end of an answer,
rating by the target.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sglang.lang.interpreter import ProgramState

from lr_sglang.algorithm.answer_request import BACKOFF_SECONDS
from lr_sglang.errors import Cancelled, LookaheadError, PromptTooLong
from lr_sglang.frontend.dsl import end, fork, step
from lr_sglang.programs.rate import ask_digit
from lr_sglang.steps.token_text import TokenText

# The rating question for a whole solution; ``rate.RATE_STEP`` asks about one step.
RATE_SOLUTION = (
    "Check the solution above. Are its facts and its calculations correct, and does it answer "
    "the question? Do not "
    "rate its wording. Give one digit, from 0 (certainly wrong) to 9 (certainly right)."
)


class Proposer:
    """Writes the next step on a role's runtime, or on the target while that runtime is missing or
    has failed.
    """

    def __init__(self, role: str) -> None:
        self._role = role
        self._backoff_until = 0.0

    def there(self, s: ProgramState) -> bool:
        """Whether the role has a runtime that has not failed within the last
        ``BACKOFF_SECONDS``.
        """
        return (
            self._role in s.stream_executor.backend.roles
            and time.monotonic() >= self._backoff_until
        )

    def step(self, s: ProgramState, **sampling: Any) -> ProgramState:
        """A fork of ``s`` that writes one more step."""
        state = fork(s, self._role if self.there(s) else "target")
        state += step("step", **sampling)
        end(state)  # takes effect after the step; the text stays, and the state can still be forked
        return state

    def drafts(self, s: ProgramState, number: int = 1, **sampling: Any) -> list[ProgramState]:
        """Forks of ``s`` in which the role has written one more step, in parallel; without those
        that have failed or are empty.
        """
        made = [self.step(s, **sampling) for _ in range(number if self.there(s) else 0)]
        return [one for one in made if not self.failed(one) and one["step"]]

    def failed(self, state: ProgramState, name: str = "step") -> bool:
        """Waits for what a fork generates; True if it failed, or if a draft wrote special tokens,
        which could forge a turn. Then the role is left alone for a while.

        Raises:
            LookaheadError: the target failed, or the answer was cancelled.
        """
        backend = state.stream_executor.backend
        try:
            made = TokenText.wrap(state[name])
        except LookaheadError as error:
            if isinstance(error, Cancelled) or error.role == "target":
                raise
            made = None
        if made is not None and (
            backend.role == "target" or not backend.tokenizer.special(made.ids)
        ):
            return False
        self._backoff_until = time.monotonic() + BACKOFF_SECONDS
        return True


def write_steps(s: ProgramState, next_step: Callable[[int], ProgramState], most: int = 200) -> str:
    """Adds steps to ``s`` until the model ends its turn, the context is full, or there are
    ``most``; returns their text.

    Args:
        next_step: by the number of the step, a fork of ``s`` that writes it.
    """
    text = ""
    for number in range(most):
        made = next_step(number)
        try:
            s += made["step"]
        except PromptTooLong:  # the context is full
            if number == 0:
                raise
            break
        text += made["step"]
        if ended_turn(made):
            break
    return text


def write_drafted(
    s: ProgramState,
    keeps: Callable[[ProgramState], bool],
    most: int = 200,
    first: int = 0,
    **sampling: Any,
) -> None:
    """Adds steps to ``s`` (``write_steps``): what the draft has written where ``keeps`` says so of
    the fork, else the target's own.

    Args:
        first: steps that the target writes before the first drafted one.
    """
    draft = Proposer("draft")
    target = Proposer("target")

    def next_step(number: int) -> ProgramState:
        for made in draft.drafts(s, **sampling) if number >= first else ():
            if keeps(made):
                return made
        return target.step(s)

    write_steps(s, next_step, most)


def tokens_left(s: ProgramState) -> int:
    """Tokens that lookahead reasoning can still add to a state."""
    s.sync()
    left: int = s.stream_executor.backend.room(s.stream_executor)
    return left


def ended_turn(s: ProgramState, name: str = "step") -> bool:
    """Whether the model ended its turn with its last generation of that name."""
    s[name]  # raises the named error if it has failed
    finish = s.get_meta_info(name)["finish_reason"]
    return finish["type"] == "stop" and isinstance(finish.get("matched"), int)


def ask_rating(s: ProgramState, question: str | None = None) -> ProgramState:
    """Asks the target, in a fork, to rate the assistant's text with one digit; ``rating_of`` waits
    for it.
    """
    asked = ask_digit(fork(s, "target"), question)
    end(asked)  # takes effect after the reply
    return asked


def rating_of(asked: ProgramState) -> int:
    """The digit, 0 to 9; 0 if the reply is no digit or the text is too long to ask about."""
    try:
        said = asked["rating"].strip()
    except PromptTooLong:
        return 0
    return int(said[0]) if said.isascii() and said.isdigit() else 0
