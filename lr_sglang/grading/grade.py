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
        by: who decided: ``text``, ``number``, ``math-verify``, ``choice``, ``tests``, a judge's
            URL, ...
        reason: why it is wrong, or why there is no verdict.
        score: for tasks that have one (MT-Bench: 1 to 10).
        extra: more for the record, such as the isolation of a program.
        failed: whether grading itself failed, for example because the grader raised; ``correct`` is
            then None.
    """

    correct: bool | None
    answer: str | None = None
    by: str = ""
    reason: str = ""
    score: float | None = None
    extra: dict[str, Any] | None = None
    failed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The record's ``grade``; empty fields are left out."""
        table = {
            "by": self.by,
            "reason": self.reason,
            "score": self.score,
            "failed": self.failed or None,
        }
        table |= self.extra or {}
        return {key: value for key, value in table.items() if value not in (None, "")}


def without(answer: str | None, question: Question, by: str) -> Grade:
    """The grade where the final answer, or the right one, is missing."""
    if question.answer is None:
        return Grade(None, answer, reason="the answer is not known")
    return Grade(False, None, by, "there is no final answer")
