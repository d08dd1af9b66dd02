"""A task: its questions, how they are asked, and how their answers are graded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.tasks.hub import Hub
from lr_sglang.tasks.question import Question, of_file, unique

# Appended to questions. The braces are single on purpose: the model sees \boxed{}.
SUFFIX = "Please reason step by step, and put your final answer within \\boxed{}."
CHOICE = (
    "Please reason step by step, and put the letter of the right choice, and nothing "
    "else, within \\boxed{}."
)
CODE = (
    "Please reason step by step, and end with the whole program, its imports too, in one "
    "```python block."
)
FUNCTION = (
    "Please reason step by step, and end with the whole function, its imports too, in "
    "one ```python block."
)
# lr_sglang.grading implements them; answers of "none" get no grade.
GRADERS = ("math", "number", "choice", "none")
EXPORTS = ("evalplus", "livecodebench")  # other tools, which run the code of answers


@dataclass(frozen=True)
class Task:
    """A task; one of your own is a ``Task`` in a file, ``FILE.py:NAME``.

    Attributes:
        hub: the data set of its questions; or give ``load``.
        load: a function that returns the questions, for a task of your own.
        suffix: appended to each question, after a line break.
        grader: one of ``GRADERS``, or a function of (what the model wrote, question) that says
            right or wrong.
        pick: the choice among all questions; ``choice`` says in words which it is.
        export: one of ``EXPORTS``, the tool that grades its answers.
    """

    name: str
    about: str = ""
    hub: Hub | None = None
    load: Callable[[], Iterable[Question]] | None = None
    suffix: str = SUFFIX
    grader: str | Callable[[str, Question], bool | None] = "math"
    pick: Callable[[list[Question]], list[Question]] | None = None
    choice: str = "all"
    export: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.grader, str) and self.grader not in GRADERS:
            hint = f"one of {', '.join(GRADERS)}"
            raise ConfigError(f"task {self.name}: there is no grader {self.grader!r}", hint=hint)
        if (self.hub is None) == (self.load is None):
            raise ConfigError(f"task {self.name}: give either load or hub")

    def questions(self, file: Path | None = None) -> list[Question]:
        """Its questions.

        Args:
            file: JSONL with the questions, in the form of the hub's data set or in our own.

        Raises:
            TaskUnavailable: they cannot be read here.
            ConfigError: a row of them is no question.
        """
        if file is not None:
            found = of_file(file, self.hub.to_question if self.hub else None)
        elif self.hub is not None:
            found = self.hub.read(self.name)
        else:
            found = unique(self._loaded(), f"task {self.name}")
        return self.pick(found) if self.pick else found

    def _loaded(self) -> Iterator[tuple[Question, str]]:
        where = f"task {self.name}"
        assert self.load is not None
        try:
            for question in self.load():
                parts = [question.question, question.answer, question.extra, {question.id: 1}]
                json.dumps(parts)  # a record can hold it
                yield question, where
        except LookaheadError:
            raise
        except (Exception, SystemExit) as error:  # a user's code may raise anything
            hint = "docs/tasks.md has an example; a question goes into a record as JSON"
            raise ConfigError(f"{where}: {error!r}", hint=hint) from error


def messages(question: str, suffix: str = "") -> list[dict[str, str]]:
    """The conversation that asks ``question``; no system message, which models that reason advise
    against.
    """
    return [{"role": "user", "content": f"{question}\n{suffix}" if suffix else question}]
