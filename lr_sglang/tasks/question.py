"""One question, files of them, and the samples of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lr_sglang import plugin_files
from lr_sglang.errors import ConfigError

QUESTION = ("question", "problem")
# Our records have both gold and answer: the right one, and the given one.
ANSWER = ("gold", "expected_answer", "answer")
HINT = 'a line is an object such as {"question": "What is 6 times 7?", "answer": "42"}'


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        answer: the right one, if it is known; a record has it as ``gold``, beside the given
            ``answer``.
        extra: other fields of its source; the record has them too.
    """

    id: str
    question: str
    answer: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


Row = dict[str, Any]
ToQuestion = Callable[[Row, int], Question]  # a row and its number, from 0


def rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The objects of a JSONL file, each with its line number; or those of one JSON array, each with
    its place.

    Raises:
        ConfigError: the file cannot be read, or a line of it is no object.
    """
    try:
        lines = plugin_files.text_of(path).split("\n")
    except OSError as error:
        hint = "lr-sglang tasks lists the built-in ones; anything else is a JSONL file"
        raise ConfigError(
            f"{path}: cannot read the questions: {error.strerror}", hint=hint
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: this is not UTF-8 text: {error}") from error
    if (whole := "\n".join(lines).strip()).startswith("["):
        with suppress(ValueError, RecursionError):
            lines = [json.dumps(row) for row in json.loads(whole)]
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path.name}, line {number}"
            try:
                table = json.loads(line, parse_constant=_constant)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{where}: this is not JSON: {error}", hint=HINT) from error
            if not isinstance(table, dict):
                raise ConfigError(f"{where}: expected an object", hint=HINT)
            yield number, table


def _constant(name: str) -> None:
    """NaN, which pandas writes for what is missing, as None."""
    if name != "NaN":
        raise ValueError(f"{name} is no number")


def of_file(path: Path, to_question: ToQuestion | None = None) -> list[Question]:
    """The questions of a JSONL file with ``question`` (or ``problem``) and, if known, ``answer``
    (or ``gold``, ``expected_answer``) and ``id``.

    Args:
        to_question: for rows that are in another form.

    Raises:
        ConfigError: as ``rows``; a line that is no question, an id that comes twice, or no question
            at all.
    """

    def either(row: Row, number: int) -> Question:
        if to_question is not None:
            try:
                return to_question(row, number)
            except KeyError:
                pass
        return plain(row, f"{path.stem}-{number + 1:04d}")

    found = (
        (line, n if to_question else line - 1, row) for n, (line, row) in enumerate(rows(path))
    )
    return questions(
        ((f"{path.name}, line {line}", n, row) for line, n, row in found), either, str(path)
    )


def questions(
    found: Iterable[tuple[str, int, Row]], to_question: ToQuestion, source: str
) -> list[Question]:
    """The questions of a source's rows; each row comes with its place (for errors) and its number.

    Raises:
        ConfigError: a row is no question, or an id comes twice.
    """

    def made() -> Iterator[tuple[Question, str]]:
        for where, number, row in found:
            try:
                question = to_question(row, number)
                _check(question.question)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error.message}", hint=error.hint) from error
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise ConfigError(
                    f"{where}: this row is no question of the task ({error!r})"
                ) from error
            yield question, where

    return unique(made(), source)


def unique(questions: Iterable[tuple[Question, str]], source: str) -> list[Question]:
    """The questions, after a check that their ids differ; each comes with its place, for errors.

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


def plain(row: Row, default_id: str) -> Question:
    """The question of one row in our own form; other fields go into ``extra``.

    Raises:
        ConfigError: the row is no question.
    """
    row = dict(row)
    found = next((row.pop(key) for key in QUESTION if row.get(key) is not None), None)
    text = _check(found, f"; it has {', '.join(row)}" if found is None and row else "")
    answer = as_answer(next((row.pop(key) for key in ANSWER if row.get(key) is not None), None))
    name = row.pop("id", None)
    if isinstance(name, float) and name.is_integer():  # of a table with missing ones
        name = int(name)
    if isinstance(name, bool) or not isinstance(name, (str, int, type(None))) or name == "":
        raise ConfigError("the id must be text or a number")
    return Question(default_id if name is None else str(name), text, answer, row)


def as_answer(value: Any) -> str | None:
    """The right answer as text; None if it is not known: missing, NaN, or empty.

    Raises:
        ConfigError: it is neither text nor a number.
    """
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
        raise ConfigError("the answer must be text or a number", hint=HINT)
    if isinstance(value, float) and math.isinf(value):
        raise ConfigError("the answer must be a finite number", hint=HINT)
    text = "" if value is None else str(value)
    return text if text.strip() else None


def _check(text: Any, has: str = "") -> str:
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"there is no 'question' text{has}", hint=HINT)
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ConfigError("the question has half a surrogate pair in it; no tokenizer reads that")
    return text


@dataclass(frozen=True)
class Work:
    """One sample to make."""

    question: Question
    sample: int
    mode: str

    @property
    def key(self) -> tuple[str, int, str]:
        """The key of its record (``results.record.key``)."""
        return self.question.id, self.sample, self.mode
