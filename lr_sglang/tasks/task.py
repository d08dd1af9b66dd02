"""A task: its questions, how they are asked, and how their answers are graded; data sets of the
Hugging Face hub, read by the package ``datasets``.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lr_sglang import hub
from lr_sglang.errors import ConfigError, LookaheadError, SetupError
from lr_sglang.tasks.question import Question, ToQuestion, questions, read_questions, unique


class TaskUnavailable(SetupError):
    """The questions of a task cannot be read on this machine; the hint says how to get them."""


@dataclass(frozen=True)
class Hub:
    """A data set of the hub, at a fixed revision.

    Attributes:
        to_question: makes a question of a row and its number, from 0.
        files: of the data set, if ``datasets`` cannot load it by name.
        gated: whether one has to log in and agree to its terms.
    """

    dataset: str
    split: str
    revision: str
    to_question: ToQuestion
    config: str | None = None
    files: tuple[str, ...] = ()
    gated: bool = False

    @property
    def place(self) -> str:
        """Data set, revision, configuration or files, and split, for messages."""
        revision = f"{self.dataset}@{self.revision[:12]}"
        parts = (revision, self.config or "", ", ".join(self.files), self.split)
        return " ".join(filter(None, parts))

    def missing(self) -> str:
        """Why it cannot be read here, before it is tried; empty if nothing is known against it."""
        known = importlib.util.find_spec("datasets")
        return "" if known else "the package datasets is not installed"

    def read(self, task: str, limit: int | None = None) -> list[Question]:
        """Its questions.

        Args:
            task: named in errors.
            limit: of the questions.

        Raises:
            TaskUnavailable: it cannot be read here.
            ConfigError: a row is no question of the task.
        """
        silent = False
        try:
            import datasets

            if silent := not hub.is_off() and not hub.answers():  # else each file is tried for 30 s
                _read_cache_only()
            names, options = self._arguments()
            table = datasets.load_dataset(*names, **options)
        except Exception as error:  # the hub's client has dozens of kinds; all are treated alike
            said = " ".join(str(error).split())[:200] or type(error).__name__
            said = f"{hub.address()} does not answer" if silent else said
            why = f"task {task}: {self.dataset} cannot be read on this machine: {said}"
            raise TaskUnavailable(why, hint=self.hint(task)) from error
        found = ((f"{self.dataset}, row {n + 1}", n, row) for n, row in enumerate(table))
        return questions(found, self.to_question, self.dataset, limit)

    def hint(self, task: str) -> str:
        """How to get the questions where they cannot be read."""
        names, options = self._arguments()
        given = ", ".join([*map(repr, names), *(f"{k}={v!r}" for k, v in options.items())])
        terms = f"log in (hf auth login) and agree to the terms of {self.dataset}; "
        return (
            f"{terms if self.gated else ''}pip install 'lr-sglang[tasks]'; with HF_HUB_OFFLINE=1 "
            "only the cache is read; on a machine with a network: "
            f"python -c \"import datasets; datasets.load_dataset({given}).to_json('{task}.jsonl')\""
            f" and here --task {task} --input {task}.jsonl"
        )

    def _arguments(self) -> tuple[list[str], dict[str, Any]]:
        if self.files:
            urls = [f"hf://datasets/{self.dataset}@{self.revision}/{file}" for file in self.files]
            return ["json"], {"data_files": {self.split: urls}, "split": self.split}
        names = [self.dataset, *([self.config] if self.config else [])]
        return names, {"split": self.split, "revision": self.revision}


def _read_cache_only() -> None:
    """As HF_HUB_OFFLINE does, which is read when the packages are imported."""
    import datasets
    import huggingface_hub

    datasets.config.HF_HUB_OFFLINE = True
    huggingface_hub.constants.HF_HUB_OFFLINE = True


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

    def questions(self, file: Path | None = None, limit: int | None = None) -> list[Question]:
        """Its questions.

        Args:
            file: with the questions, in the form of the hub's data set or in our own.
            limit: of the questions; no more are read, unless ``pick`` chooses among all.

        Raises:
            TaskUnavailable: they cannot be read here.
            ConfigError: a row of them is no question, or none is left.
        """
        first = None if self.pick else limit
        if file is not None:
            found = read_questions(file, self.hub.to_question if self.hub else None, first)
        elif self.hub is not None:
            found = self.hub.read(self.name, first)
        else:
            found = unique(self._loaded(), f"task {self.name}", first)
        chosen = (self.pick(found) if self.pick else found)[:limit]
        if not chosen:
            raise ConfigError(f"{self.name}: none of its {len(found)} questions is chosen")
        return chosen

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
