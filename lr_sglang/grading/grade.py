"""The result of grading one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lr_sglang.tasks.question import Question


@dataclass(frozen=True)
class Grade:
    """A verdict on one answer.

    Attributes:
        correct: None where it cannot be decided; ``reason`` says why.
        answer: the final answer that was found in the text.
        by: who decided: ``text``, ``number``, ``units``, ``math-verify``, ``choice``, or the name
            of a user's grader.
        reason: why it is wrong, or why there is no verdict.
        failed: whether grading itself failed, for example because the grader raised; ``correct`` is
            then None.
    """

    correct: bool | None
    answer: str | None = None
    by: str = ""
    reason: str = ""
    failed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The record's ``grade``; empty fields are left out."""
        table = {"by": self.by, "reason": self.reason, "failed": self.failed}
        return {key: value for key, value in table.items() if value}


def grade_without_answer(answer: str | None, question: Question, by: str) -> Grade:
    """The grade where the final answer, or the right one, is missing."""
    if question.answer is None:
        return Grade(None, answer, reason="the answer is not known")
    return Grade(False, None, by, "there is no final answer")
