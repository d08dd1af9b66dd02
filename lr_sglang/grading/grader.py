"""The grader of a run: the task's kind of grading, and the worker processes for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any

from lr_sglang import plugin_files
from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.grading import answers, choices, mathematics
from lr_sglang.grading.grade import Grade
from lr_sglang.grading.pool import GradingPool
from lr_sglang.results.record import Record
from lr_sglang.tasks import boxed
from lr_sglang.tasks.question import Question

Fields = dict[str, Any]  # of a record
Function = Callable[[str, Question], bool | Grade | None]
NO_GRADE = "answers of this task get no grade here"


class Grader(AbstractContextManager["Grader"]):
    """Grades records of one task. A context manager; any thread may ask.

    Args:
        kind: one of ``tasks.task.GRADERS``, or a function of the answer's text and the question.
    """

    def __init__(self, kind: str | Function) -> None:
        self.kind = kind
        self._pool = GradingPool()
        self._one = Lock()  # a user's function is called for one answer at a time

    @property
    def name(self) -> str:
        return (
            self.kind if isinstance(self.kind, str) else getattr(self.kind, "__name__", "function")
        )

    def grade(self, text: str, question: Question) -> Grade:
        """The verdict on one answer.

        Raises:
            SetupError: no worker process starts on this machine.
            ConfigError: a user's grader raises, or returns no verdict.
        """
        match self.kind:
            case "math":
                return mathematics.grade_mathematics(text, question, self._pool.compare)
            case "number":
                answer = boxed.boxed(text)
                return Grade(boxed.correct(answer, question.answer), answer, by="number")
            case "choice":
                return choices.grade_choice(text, question)
            case str():
                return Grade(None, reason=NO_GRADE)
        return self._outside(self.kind, text, question)

    def verdict(self, record: Record) -> Fields:
        """New values of a record's ``answer``, ``correct`` and ``grade``.

        A sample that failed counts as wrong if its answer could have been graded. If grading itself
        fails, the grade has no verdict but the reason, and is ``failed``, so that a run of hours
        does not end with an error.
        """
        extra = record.get("extra") or {}
        question = Question(record["question_id"], record["question"], record["gold"], extra)
        if record["error"]:
            knows = self.kind != "none" and (
                question.answer is not None or not isinstance(self.kind, str)
            )
            return self._fields(Grade(False if knows else None, reason="the sample failed"))
        try:
            return self._fields(self.grade(record["text"], question))
        except LookaheadError as error:
            why = error.message
        except Exception as error:  # noqa: BLE001 - an answer that a grader chokes on costs its own verdict only
            why = f"grading failed: {error!r}"[:500]
        return self._fields(Grade(None, reason=why, failed=True))

    def __exit__(self, *_: object) -> None:
        """Ends the worker processes."""
        self._pool.close()

    def _fields(self, given: Grade) -> Fields:
        table = {"grader": self.name, **given.to_dict()}
        return {"answer": given.answer, "correct": given.correct, "grade": table}

    def _outside(self, judge: Function, text: str, question: Question) -> Grade:
        try:
            with self._one:
                found = judge(text, question)
        except BaseException as error:  # some libraries' errors are no Exception, such as pytest's
            if isinstance(error, KeyboardInterrupt):
                raise
            why = f"grader {self.name}: {plugin_files.describe(error)}"
            raise ConfigError(why, hint="docs/tasks.md has an example") from error
        if isinstance(found, Grade):
            given = found
        else:
            given = Grade(found, answers.final_answer(text), by=self.name)
        if not isinstance(given.correct, bool | None):
            raise ConfigError(
                f"grader {self.name}: expected true, false or None, not {given.correct!r}"
            )
        json.dumps([given.answer, given.to_dict()])  # else no record can hold it
        return given
