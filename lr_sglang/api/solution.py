"""A solution: an answer's text, its trace and its record, and a table of its steps for
notebooks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

from lr_sglang.errors import LookaheadError
from lr_sglang.results.record import Record
from lr_sglang.steps.trace import StepRecord, Trace
from lr_sglang.tasks.boxed import boxed

SHOWN = 400  # maximum characters of a step in a notebook
MAX_STEPS = 200  # maximum steps in a notebook


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

    def _repr_html_(self) -> str:
        """The table that a notebook shows; all text in it is escaped."""
        figures: dict[str, Any] = {
            "answer": self.answer,
            "steps": len(self.steps),
            "alpha": None if self.alpha is None else f"{self.alpha:.2f}",
            "seconds": f"{self.seconds:.2f}",
            "error": self.error,
        }
        head = ", ".join(
            f"{name} {escape(str(value))}" for name, value in figures.items() if value is not None
        )
        rows = "".join(_row(step) for step in self.steps[:MAX_STEPS])
        more = (
            f"<p>and {len(self.steps) - MAX_STEPS} more</p>" if len(self.steps) > MAX_STEPS else ""
        )
        columns = "".join(f"<th>{name}</th>" for name in ("s", "by", "outcome", "tokens", "step"))
        table = f"<table><tr>{columns}</tr>{rows}</table>{more}" if rows else ""
        return f"<div><p><b>{escape(self.question[:SHOWN])}</b></p><p>{head}</p>{table}</div>"


def _row(step: StepRecord) -> str:
    shown = step.text.strip()
    shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + " ..."
    cells = (f"{step.seconds:.2f}", step.source, step.outcome, str(step.tokens), shown)
    return (
        "<tr>"
        + "".join(f'<td style="text-align:left">{escape(cell)}</td>' for cell in cells)
        + "</tr>"
    )
