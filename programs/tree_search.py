"""A beam search over steps (as in Tree of Thoughts, arXiv 2305.10601): the draft proposes steps,
the target rates them, and the best prefixes are continued."""

from __future__ import annotations

from typing import NamedTuple

import sglang as sgl
from sglang.lang.interpreter import ProgramState

from lr_sglang.errors import PromptTooLong
from lr_sglang.frontend.dsl import converse
from lr_sglang.programs.common import Proposer, ask_rating, ended, rating_of


class Path(NamedTuple):
    """A prefix of the answer. ``value`` is the mean rating of its steps."""

    state: ProgramState
    ratings: tuple[int, ...] = ()
    over: bool = False

    @property
    def value(self) -> float:
        return sum(self.ratings) / len(self.ratings) if self.ratings else 0.0


@sgl.function
def tree_search(
    s: ProgramState,
    messages: list[dict[str, str]],
    beam: int = 2,
    width: int = 2,
    most: int = 40,
    role: str = "draft",
) -> None:
    """Answers a conversation; ``s["value"]`` is the mean rating of the answer's steps.

    Args:
        beam: prefixes kept after each step.
        width: steps proposed after each prefix, in parallel.
        most: maximal number of steps.
        role: the role that proposes steps; the target proposes where its runtime is missing or has
            failed.
    """
    converse(s, messages)
    start = len(s.text())
    paths, proposer = [Path(s)], Proposer(role)
    for _ in range(most):
        begun = [
            (path, proposer.step(path.state))
            for path in paths
            if not path.over
            for _ in range(width)
        ]
        grown = [
            (path, proposer.step(path.state) if proposer.failed(made) else made)
            for path, made in begun
        ]
        try:
            over = [ended(state) for _, state in grown]
        except PromptTooLong:  # the context is full
            if paths[0].state is s:
                raise
            break
        asked = [ask_rating(state) for _, state in grown]
        found = [
            Path(state, (*path.ratings, rating_of(one)), last)
            for (path, state), one, last in zip(grown, asked, over, strict=True)
        ]
        paths = sorted([path for path in paths if path.over] + found, key=lambda path: -path.value)[
            :beam
        ]
        if all(path.over for path in paths):
            break
    s["value"] = paths[0].value
    s["answer"] = paths[0].state.text()[start:]
