"""The grader of a run: the task's kind of grading, what is allowed, and the worker processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from lr_sglang import plugin_files
from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.grading import answers, choices, mathematics, programs
from lr_sglang.grading.grade import Grade
from lr_sglang.grading.pool import Pool
from lr_sglang.grading.rater import Rater
from lr_sglang.grading.sandbox import PERMIT, Limits, Sandbox
from lr_sglang.results.record import Record
from lr_sglang.tasks import boxed, gym
from lr_sglang.tasks.question import Question
from lr_sglang.tasks.task import GRADERS

Function = Callable[[str, Question], bool | Grade | None]
CODE = ("humaneval", "livecodebench")
QUICK = ("number", "choice")  # graded at once


@dataclass(frozen=True)
class Rules:
    """What grading may do.

    Attributes:
        execute: whether code of answers may be run.
        unsafe: whether it may be run even without isolation.
        limits: for that code; by default those of the task.
        rater: rates open answers.
        workers: processes for Math-Verify.
    """

    execute: bool = False
    unsafe: bool = False
    limits: Limits | None = None
    rater: Rater | None = None
    workers: int = 1

    def to_dict(self) -> dict[str, Any]:
        """The settings that can change verdicts, for comparing two gradings."""
        return {"execute": self.execute, "limits": repr(self.limits), "rater": repr(self.rater)}


@dataclass
class Grader:
    """Grades records of one task. A context manager; any thread may ask.

    Args:
        kind: one of ``tasks.task.GRADERS``, or a function of the answer's text and the question.
        hidden: by id, the questions' data that is not in the records.

    Raises:
        ConfigError: there is no such kind.
        SetupError: code of answers is to be run, and this machine cannot isolate it.
    """

    kind: str | Function
    rules: Rules = field(default_factory=Rules)
    hidden: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.kind, str) and self.kind not in GRADERS:
            raise ConfigError(
                f"there is no grader {self.kind!r}", hint=f"one of {', '.join(GRADERS)}"
            )
        self._pool, self._sandbox = Pool(self.rules.workers), Sandbox(unsafe=self.rules.unsafe)
        if self.kind in CODE and self.rules.execute:
            self._sandbox.wall()

    @property
    def name(self) -> str:
        return (
            self.kind if isinstance(self.kind, str) else getattr(self.kind, "__name__", "function")
        )

    def grade(self, text: str, question: Question) -> Grade:
        """The verdict on one answer.

        Raises:
            SetupError: this machine cannot grade such answers.
            ConfigError: a user's grader raises, or returns no verdict.
        """
        if not isinstance(self.kind, str):
            return self._outside(self.kind, text, question)
        rules = self.rules
        match self.kind:
            case "number":
                answer = boxed.boxed(text)
                return Grade(boxed.correct(answer, question.answer), answer, by="number")
            case "choice":
                return choices.grade(text, question)
            case "humaneval" | "livecodebench":
                if not rules.execute:
                    return Grade(None, reason=f"code of answers is run only with {PERMIT}")
                run = programs.humaneval if self.kind == "humaneval" else programs.livecodebench
                try:
                    return run(text, question, self._sandbox, rules.limits)
                except KeyError as error:
                    return Grade(None, reason=f"the record has no tests ({error})", failed=True)
            case "mt-bench":
                if rules.rater is None:
                    return Grade(None, reason="open answers are rated only with --rater URL")
                return rules.rater.grade(text, question)
            case "reasoning-gym" if "generator" in question.extra:
                answer = answers.final_answer(text)
                if gym.missing():
                    return Grade(
                        None,
                        answer,
                        reason="the package reasoning-gym is not installed",
                        failed=True,
                    )
                if not rules.execute:
                    return Grade(
                        None,
                        answer,
                        reason=f"reasoning-gym may run an answer as code, which needs {PERMIT}",
                    )
                return programs.reasoning_gym(answer or "", question, self._sandbox, rules.limits)
        return mathematics.grade(text, question, self._pool.compare)

    def apply(self, record: Record) -> Record:
        """The record with new ``answer``, ``correct`` and ``grade``; nothing else is changed.

        A sample that failed counts as wrong if its answer could have been graded. If grading itself
        fails, the grade has no verdict but the reason, and is ``failed``, so that a run of hours
        does not end with an error.
        """
        name, extra = record["question_id"], record.get("extra") or {}
        question = Question(
            name, record["question"], record["gold"], extra, self.hidden.get(name, {})
        )
        if record["error"]:
            given = Grade(False if self._knows(question) else None, reason="the sample failed")
        else:
            try:
                given = self.grade(record["text"], question)
            except LookaheadError as error:
                given = Grade(None, reason=error.message, failed=True)
            except Exception as error:  # noqa: BLE001 - an answer that a grader chokes on costs its own verdict only
                given = Grade(None, reason=f"grading failed: {error!r}"[:500], failed=True)
        table = {"grader": self.name, **given.to_dict()}
        return {**record, "answer": given.answer, "correct": given.correct, "grade": table}

    def postponed(self, record: Record) -> Record:
        """As ``apply`` if grading takes no time; else a record without a verdict, which ``lr-sglang
        grade`` can add.
        """
        if record["error"] or self.kind in QUICK:
            return self.apply(record)
        grade = {
            "grader": self.name,
            **Grade(None, reason="the run was stopped before", failed=True).to_dict(),
        }
        return {**record, "answer": None, "correct": None, "grade": grade}

    def close(self) -> None:
        """Ends the worker processes, and programs that are running. Idempotent."""
        self._pool.close()
        self._sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _knows(self, question: Question) -> bool:
        """Whether an answer to the question would get a verdict."""
        if self.kind in CODE or (self.kind == "reasoning-gym" and "generator" in question.extra):
            return self.rules.execute
        return question.answer is not None or not isinstance(self.kind, str)

    def _outside(self, judge: Function, text: str, question: Question) -> Grade:
        try:
            found = judge(text, question)
        except BaseException as error:  # some libraries' errors are no Exception, such as pytest's
            if isinstance(error, KeyboardInterrupt):
                raise
            why = f"grader {self.name}: {plugin_files.describe(error)}"
            raise ConfigError(why, hint="docs/tasks.md has an example") from error
        given = (
            found
            if isinstance(found, Grade)
            else Grade(found, answers.final_answer(text), by=self.name)
        )
        if not isinstance(given.correct, bool | None):
            raise ConfigError(
                f"grader {self.name}: expected true, false or None, not {given.correct!r}"
            )
        json.dumps([given.answer, given.to_dict()])  # else no record can hold it
        return given
