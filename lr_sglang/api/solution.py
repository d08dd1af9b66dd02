"""A solution: an answer's text, its trace and its record."""

from __future__ import annotations

from dataclasses import dataclass, field

from lr_sglang.errors import LookaheadError
from lr_sglang.results.record import Record
from lr_sglang.steps.trace import StepRecord, Trace
from lr_sglang.tasks.boxed import boxed


@dataclass(frozen=True)
class Solution:
    """One answered question. As a string it is the answer's text.

    Attributes:
        question: the user's last message.
        trace: the steps and branches of the answer.
        record: the JSON record of ``lr-sglang run``.
        error: the failure that ended the answer; ``solve_many`` sets it, other functions raise it.
    """

    question: str
    trace: Trace = field(repr=False)
    record: Record = field(repr=False)
    error: LookaheadError | None = None

    @property
    def text(self) -> str:
        """The whole answer, its reasoning included."""
        return self.trace.text

    @property
    def answer(self) -> str | None:
        r"""The content of the last ``\boxed{}``; None if there is none."""
        return boxed(self.trace.text)

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """The steps of the answer, in order."""
        return tuple(self.trace.steps)

    @property
    def alpha(self) -> float | None:
        """Step acceptance rate; None if no draft was compared."""
        return self.trace.alpha

    @property
    def seconds(self) -> float:
        """Seconds from the question to the last step."""
        return self.trace.seconds

    def __str__(self) -> str:
        return self.text
