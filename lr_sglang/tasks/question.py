"""One question, files of them, and the samples of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lr_sglang.errors import ConfigError

ANSWER = ("gold", "answer")  # a record of ours has both: the right answer, and the one that was given
HINT = 'a line is an object such as {"question": "What is 6 times 7?", "answer": "42"}'


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        answer: the right one, if it is known; a record keeps it as ``gold``, beside the ``answer`` that was given.
        extra: what else its source says about it; goes into the record.
        hidden: what only the grader needs, and is too long for a record of each sample (LiveCodeBench's tests).
    """

    id: str
    question: str
    answer: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    hidden: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)


def rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file, each with its line number.

    Raises:
        ConfigError: the file cannot be read, or a line of it is no object.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the questions: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: this is not UTF-8 text: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path.name}, line {number}"
            try:
                table = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{where}: this is not JSON: {error}") from error
            if not isinstance(table, dict):
                raise ConfigError(f"{where}: expected an object", hint=HINT)
            yield number, table


def of_file(path: Path) -> list[Question]:
    """The questions of a JSONL file with ``question`` and, if known, ``answer`` (or ``gold``) and ``id``.

    Raises:
        ConfigError: as ``rows``; a line that is no question, an id that comes twice, or no question at all.
    """
    found = ((plain(row, f"{path.name}, line {n}", f"{path.stem}-{n:04d}"), n) for n, row in rows(path))
    return unique(((question, f"{path.name}, line {n}") for question, n in found), str(path))


def unique(questions: Iterable[tuple[Question, str]], source: str) -> list[Question]:
    """The questions, each with its own id; the second of a pair says where it stands.

    Raises:
        ConfigError: an id comes twice, or there is no question.
    """
    kept: dict[str, Question] = {}
    for question, where in questions:
        if question.id in kept:
            raise ConfigError(f"{where}: id {question.id!r} comes twice")
        kept[question.id] = question
    if not kept:
        raise ConfigError(f"{source}: there is no question in it")
    return list(kept.values())


def plain(table: dict[str, Any], where: str, default_id: str) -> Question:
    """The question of one row in our own form; what it has besides goes into ``extra``.

    Raises:
        ConfigError: it is none.
    """
    table = dict(table)
    text = checked(table.pop("question", None), where)
    answer = next((table.pop(key) for key in ANSWER if table.get(key) is not None), None)
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float, type(None))):
        raise ConfigError(f"{where}: the answer must be text or a number", hint=HINT)
    name = table.pop("id", default_id)
    if isinstance(name, bool) or not isinstance(name, (str, int)) or name == "":
        raise ConfigError(f"{where}: the id must be text or a number")
    return Question(str(name), text, None if answer is None else str(answer), table)


def checked(text: Any, where: str) -> str:
    """The text of a question that can be asked.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{where}: there is no 'question' text", hint=HINT)
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ConfigError(f"{where}: the question has half a surrogate pair in it; no tokenizer reads that")
    return text


@dataclass(frozen=True)
class Work:
    """One sample to make."""

    question: Question
    sample: int
    mode: str

    @property
    def key(self) -> tuple[str, int, str]:
        """As ``results.record.key``."""
        return self.question.id, self.sample, self.mode


def plan(questions: Sequence[Question], modes: Sequence[str], samples: int = 1) -> list[Work]:
    """Modes side by side, question by question, so that what disturbs the machine disturbs all modes alike."""
    return [Work(question, sample, mode) for question in questions for sample in range(samples) for mode in modes]
