"""A task: the sources of its questions, how they are asked, and how their answers are graded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.tasks.question import Question, unique
from lr_sglang.tasks.sources import Source, TaskUnavailable

__all__ = ["TaskUnavailable"]

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
# The values of --grader; lr_sglang.grading implements them.
GRADERS = ("math", "number", "choice", "humaneval", "livecodebench", "mt-bench", "reasoning-gym")


@dataclass(frozen=True)
class Task:
    """A task. One from a third party is a ``Task`` too, under the entry point group
    ``lr_sglang.tasks`` or in a file.

    Attributes:
        sources: tried in turn; or give ``load``.
        load: a function that returns the questions, for a task of your own.
        suffix: appended to each question, after a line break.
        grader: one of ``GRADERS``, or a function of (what the model wrote, question) that says
            right or wrong.
        pick: the choice among the questions of a whole source; ``choice`` says in words which it
            is.
        needs: what grading needs besides this package, in words.
    """

    name: str
    about: str = ""
    sources: tuple[Source, ...] = ()
    load: Callable[[], Iterable[Question]] | None = None
    suffix: str = SUFFIX
    grader: str | Callable[[str, Question], bool | None] = "math"
    pick: Callable[[list[Question]], list[Question]] | None = None
    choice: str = "all"
    needs: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.grader, str) and self.grader not in GRADERS:
            hint = f"one of {', '.join(GRADERS)}"
            raise ConfigError(f"task {self.name}: there is no grader {self.grader!r}", hint=hint)

    def questions(self, source: str | Source = "", *, everything: bool = False) -> list[Question]:
        """Its questions.

        Args:
            source: one, or the name of one; by default the first that can be read.
            everything: all questions of the source, rather than the task's choice.

        Raises:
            TaskUnavailable: no source can be read here.
            ConfigError: there is no such source, or its rows are no questions.
        """
        found = self._read(source, everything) if isinstance(source, str) else source.read()
        return found if self.pick is None or everything else self.pick(found)

    def _read(self, source: str, everything: bool) -> list[Question]:
        if self.load is not None:
            return unique(self._loaded(self.load), f"task {self.name}")
        named = [one for one in self.sources if one.name == source]
        if source and not named:
            names = ", ".join(f"{self.name}@{one.name}" for one in self.sources)
            raise ConfigError(f"{self.name} has no source {source!r}", hint=f"there are {names}")
        why, hints = [], []
        for one in named or [
            each for each in self.sources if each.automatic and not (everything and each.part)
        ]:
            try:
                if not (reason := one.missing()):
                    return one.read()
            except ConfigError:
                raise
            except LookaheadError as error:
                reason = error.message
            why.append(f"{one.name}: {reason}")
            hints.append(one.hint(self.name))
        if not named:
            hints += [each.hint(self.name) for each in self.sources if not each.automatic]
        said = f"task {self.name}: its questions cannot be had on this machine ({'; '.join(why)})"
        raise TaskUnavailable(said, hint="; or ".join(dict.fromkeys(filter(None, hints))))

    def _loaded(self, load: Callable[[], Iterable[Question]]) -> Iterator[tuple[Question, str]]:
        where = f"task {self.name}"
        try:
            for question in load():
                json.dumps(
                    [question.question, question.answer, question.extra, {question.id: 1}]
                )  # its record can
                yield question, where
        except LookaheadError:
            raise
        except (Exception, SystemExit) as error:  # code of another package: it may raise anything
            hint = "docs/tasks.md has an example; a question goes into a record as JSON"
            raise ConfigError(f"{where}: {error!r}", hint=hint) from error


def messages(question: str, suffix: str = "") -> list[dict[str, str]]:
    """The conversation that asks ``question``; no system message, which models that reason advise
    against.
    """
    return [{"role": "user", "content": f"{question}\n{suffix}" if suffix else question}]
