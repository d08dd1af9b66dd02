"""Data sets of the Hugging Face hub, read by the package ``datasets``."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from lr_sglang.errors import SetupError
from lr_sglang.tasks.question import Question, ToQuestion, questions


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
        found = importlib.util.find_spec("datasets")
        return "" if found else "the package datasets is not installed"

    def read(self, task: str) -> list[Question]:
        """Its questions.

        Args:
            task: named in errors.

        Raises:
            TaskUnavailable: it cannot be read here.
            ConfigError: a row is no question of the task.
        """
        try:
            import datasets

            names, options = self._arguments()
            table = datasets.load_dataset(*names, **options)
        except Exception as error:  # the hub's client has dozens of kinds; all are treated alike
            said = " ".join(str(error).split())[:200] or type(error).__name__
            why = f"task {task}: {self.dataset} cannot be read on this machine: {said}"
            raise TaskUnavailable(why, hint=self.hint(task)) from error
        found = ((f"{self.dataset}, row {n + 1}", n, row) for n, row in enumerate(table))
        return questions(found, self.to_question, self.dataset)

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
