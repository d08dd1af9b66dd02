"""Synthetic word problems with known steps.

A problem is a question, the operations that solve it in order, and the answer. A solution words
each operation as one step, chosen among several wordings, and ends with a ``\\boxed{N}`` step;
steps are joined by a blank line and nothing follows the last one. Two solvers that agree on every
step therefore seldom write the same text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from tools.pocket.families import FAMILIES
from tools.pocket.meaning import BOXED
from tools.pocket.wordings import (
    ANSWERS,
    FIRST_LEADS,
    LEADS,
    NAMES,
    OPERATORS,
    OTHER_ANSWERS,
    OTHER_STEPS,
    STEPS,
)

DELIMITER = "\n\n"
MIN_OPERATIONS, MAX_OPERATIONS = 2, 6
HELD_OUT_PART = 10  # one structure in ten is never trained on


def compute(operator: str, a: int, b: int) -> int:
    """The result of ``a operator b``; division is whole, and by zero gives zero."""
    if operator == "/":
        return a // b if b else 0
    return {"+": a + b, "-": a - b, "*": a * b}[operator]


@dataclass(frozen=True)
class Operation:
    """One step's content: ``a operator b = result``, and the words its wordings need."""

    kind: str
    a: int
    b: int
    result: int
    words: dict[str, str] = field(default_factory=dict)

    @property
    def operator(self) -> str:
        return OPERATORS[self.kind]

    @property
    def equation(self) -> str:
        return f"{self.a} {self.operator} {self.b} = {self.result}"

    def render_other(self, rng: Random, slips: float = 0.0) -> str:
        """The step's text in a random one of the other wordings; each number of its words is a
        wrong one with the probability ``slips``, and its equation is right.
        """
        wording = rng.choice(OTHER_STEPS[self.operator])
        a, b = (
            rng.randint(2, 40) if slips and rng.random() < slips else number
            for number in (self.a, self.b)
        )
        return wording.format(e=self.equation, a=a, b=b, c=self.result)

    def render(self, rng: Random, first: bool = False) -> str:
        """The step's text in a random wording, with no delimiter."""
        text = rng.choice(STEPS[self.kind]).format(
            e=self.equation, a=self.a, b=self.b, c=self.result, **self.words
        )
        lead = rng.choice(FIRST_LEADS if first else LEADS)
        if lead and text.split()[0] not in NAMES:
            text = text[0].lower() + text[1:]
        return lead + text


@dataclass(frozen=True)
class Problem:
    """A question, the operations that solve it, and its answer."""

    question: str
    family: str
    operations: tuple[Operation, ...]

    @property
    def answer(self) -> int:
        return self.operations[-1].result

    @property
    def structure(self) -> str:
        """The problem without names, things or wordings: kinds of operations and their numbers."""
        return self.family + "".join(f" {o.kind} {o.a} {o.b}" for o in self.operations)

    @property
    def held_out(self) -> bool:
        """Whether this structure is kept for evaluation.

        It depends on the structure alone, so the same numbers with other names or wordings are on
        the same side.
        """
        return (
            int.from_bytes(hashlib.sha256(self.structure.encode()).digest()[:8]) % HELD_OUT_PART
            == 0
        )

    def solution(self, rng: Random) -> list[str]:
        """The steps of one solution, in random wordings, the boxed answer last."""
        steps = [o.render(rng, first=i == 0) for i, o in enumerate(self.operations)]
        return [*steps, render_answer(self.answer, rng)]

    def other_solution(self, rng: Random, slips: float = 0.0) -> list[str]:
        """The steps of one solution in other wordings, the boxed answer last; ``slips`` as of
        ``Operation.render_other``.
        """
        steps = [o.render_other(rng, slips) for o in self.operations]
        return [*steps, rng.choice(OTHER_ANSWERS).format(c=self.answer)]


def render_answer(answer: int, rng: Random) -> str:
    """A closing step: the boxed answer in a random wording."""
    return rng.choice(ANSWERS).format(c=answer)


def make_problem(rng: Random, low: int = MIN_OPERATIONS, high: int = MAX_OPERATIONS) -> Problem:
    """A random problem of ``low`` to ``high`` operations."""
    family = rng.choice(list(FAMILIES))
    sentences, raw = FAMILIES[family](rng, rng.randint(low, high))
    operations = tuple(
        Operation(kind, a, b, compute(OPERATORS[kind], a, b), words) for kind, a, b, words in raw
    )
    return Problem(" ".join(sentences), family, operations)


def problems(
    seed: int, held_out: bool, low: int = MIN_OPERATIONS, high: int = MAX_OPERATIONS
) -> Iterator[Problem]:
    """An endless stream of problems of one side of the split; held-out structures never repeat
    within a stream.
    """
    rng, seen = Random(seed), set[str]()
    while True:
        problem = make_problem(rng, low, high)
        if problem.held_out != held_out or problem.structure in seen:
            continue
        if held_out:
            seen.add(problem.structure)
        yield problem


def boxed_answer(text: str) -> str | None:
    """The last boxed number of a solution, or None."""
    found = BOXED.findall(text)
    return found[-1] if found else None


def with_numbers(operation: Operation, a: int, b: int, result: int) -> Operation:
    """The same step with other numbers, right or wrong."""
    return replace(operation, a=a, b=b, result=result)
