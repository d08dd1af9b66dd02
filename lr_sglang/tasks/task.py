"""What a task is: where its questions are, how they are asked, and how their answers are graded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from lr_sglang.errors import ConfigError, LookaheadError, SetupError
from lr_sglang.tasks.question import Question, unique

# What is appended to questions. The braces are single on purpose: the model sees \boxed{}.
SUFFIX = "Please reason step by step, and put your final answer within \\boxed{}."
CHOICE = "Please reason step by step, and put the letter of the right choice, and nothing else, within \\boxed{}."
CODE = "Please reason step by step, and end with the whole program, its imports too, in one ```python block."
FUNCTION = "Please reason step by step, and end with the whole function, its imports too, in one ```python block."
# What --grader may say; the modules of lr_sglang.grading have the rest.
GRADERS = ("math", "number", "choice", "humaneval", "livecodebench", "mt-bench", "reasoning-gym")


class TaskUnavailable(SetupError):
    """The questions of a task cannot be had on this machine; the hint says how to bring them here."""


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """One place where the questions of a task may be.

    Attributes:
        name: short, for ``TASK@NAME``.
        part: whether it has no more than the task's own choice of questions.
        automatic: whether it is tried when nobody asks for it by name (one that has less than that is not).
        offline: whether it needs no network.
    """

    name: str
    part: bool = False
    automatic: bool = True
    offline: ClassVar[bool] = True

    @property
    @abstractmethod
    def place(self) -> str:
        """Where exactly, for a person."""

    @abstractmethod
    def missing(self) -> str:
        """Why it cannot be read here; empty if it can, or if only trying would tell."""

    @abstractmethod
    def read(self) -> list[Question]:
        """Its questions.

        Raises:
            LookaheadError: they cannot be had, or are not what they should be.
        """

    def hint(self, task: str) -> str:
        """How to have it."""
        return ""


@dataclass(frozen=True)
class Task:
    """A task. One from a third party is a ``Task`` too, under the entry point group ``lr_sglang.tasks`` or in a file.

    Attributes:
        sources: tried in turn; or give ``load``.
        load: a function that gives the questions, for a task of one's own.
        suffix: appended to each question, after a line break.
        grader: one of ``GRADERS``, or a function of (what the model wrote, question) that says right or wrong.
        pick: the choice among the questions of a whole source; ``choice`` says in words which it is.
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
            raise ConfigError(
                f"task {self.name}: there is no grader {self.grader!r}", hint=f"one of {', '.join(GRADERS)}"
            )

    def questions(self, source: str = "", *, everything: bool = False) -> list[Question]:
        """Its questions.

        Args:
            source: the name of one source; by default the first that can be read.
            everything: all that the source has, rather than the task's choice.

        Raises:
            TaskUnavailable: no source can be read here.
            ConfigError: there is no such source, or what it holds are no questions.
        """
        found = self._read(source, everything)
        if self.pick is not None and not everything:
            found = self.pick(found)
        return found

    def _read(self, source: str, everything: bool) -> list[Question]:
        if self.load is not None:
            return unique(((q, f"task {self.name}") for q in self.load()), f"task {self.name}")
        named = [one for one in self.sources if one.name == source] if source else []
        if source and not named:
            names = ", ".join(f"{self.name}@{one.name}" for one in self.sources)
            raise ConfigError(f"{self.name} has no source {source!r}", hint=f"there are {names}")
        why, hints = [], []
        for one in named or [each for each in self.sources if each.automatic and not (everything and each.part)]:
            if reason := one.missing():
                why.append(f"{one.name}: {reason}")
            else:
                try:
                    return one.read()
                except ConfigError:
                    raise
                except LookaheadError as error:
                    why.append(f"{one.name}: {error.message}")
            hints.append(one.hint(self.name))
        if not named:
            hints += [each.hint(self.name) for each in self.sources if not each.automatic]
        hint = "; or ".join(dict.fromkeys(filter(None, hints)))
        raise TaskUnavailable(
            f"task {self.name}: its questions cannot be had on this machine ({'; '.join(why)})", hint=hint
        )


def suffix_for(task: str | None) -> str:
    """What is appended to the questions of a task by default; a single question is sent as it was typed.

    Raises:
        ConfigError: it names a task of a third party that cannot be loaded.
    """
    from lr_sglang.tasks.lookup import find

    if task is None:
        return ""
    found = find(task)
    return found.task.suffix if found else SUFFIX


def messages(question: str, suffix: str = "") -> list[dict[str, str]]:
    """The conversation that asks ``question``; no system message, which models that reason advise against."""
    return [{"role": "user", "content": f"{question}\n{suffix}" if suffix else question}]
