"""One question, files of them, and the samples of a run."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from lr_sglang import plugin_files
from lr_sglang.errors import ConfigError

QUESTION_FIELDS = ("question", "problem")
# Our records have both gold and answer: the right one, and the given one.
ANSWER_FIELDS = ("gold", "expected_answer", "answer")
ROW_HINT = 'a line is an object such as {"question": "What is 6 times 7?", "answer": "42"}'
FORMS = (
    f"JSONL, where {ROW_HINT}; or a JSON array of them; or CSV with a row of names: question,answer"
)
TABLES = {".csv": ",", ".tsv": "\t"}  # with what separates their cells
LONGEST_CELL = 2**31 - 1  # characters


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


SourceRow = dict[str, Any]
ToQuestion = Callable[[SourceRow, int], Question]  # a row and its number, from 0


def source_rows(path: Path) -> Iterator[tuple[str, int, SourceRow]]:
    """The rows of a file of questions, each read when it is asked for, with its place (for errors)
    and its number, from 1. The file has an object a line, or one JSON array of objects, or is a
    table: CSV whose first row has the names.

    Raises:
        ConfigError: the file cannot be read, or a row of it is no object.
    """
    try:
        with plugin_files.opened(path) as text:
            yield from _rows(text, path)
    except OSError as error:
        hint = f"lr-sglang tasks lists the built-in ones; anything else is a file: {FORMS}"
        raise ConfigError(
            f"{path}: cannot read the questions: {error.strerror}", hint=hint
        ) from error
    except UnicodeError as error:
        raise ConfigError(f"{path}: this is not UTF-8 text: {error}", hint=FORMS) from error


def _rows(text: TextIO, path: Path) -> Iterator[tuple[str, int, SourceRow]]:
    name = path.name
    numbered = enumerate(text, 1)
    number, first = next(((n, line) for n, line in numbered if line.strip()), (0, ""))
    if first.lstrip().startswith("["):
        # so that an error names the line of the file
        for place, row in enumerate(_decoded("\n" * (number - 1) + first + text.read(), name), 1):
            where = f"{name}, object {place}"
            yield where, place, _checked_row(row, where)
    elif delimiter := _delimiter(first, path.suffix):
        yield from _of_table(chain([first], text), delimiter, number, name)
    elif first:
        for place, line in chain([(number, first)], numbered):
            if line.strip():
                where = f"{name}, line {place}"
                yield where, place, _checked_row(_decoded(line, where), where)


def _decoded(text: str, where: str) -> Any:
    try:
        return _JSON.decode(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: this is not JSON: {error}", hint=FORMS) from error


def _checked_row(row: Any, where: str) -> SourceRow:
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: expected an object", hint=FORMS)
    return row


def _delimiter(line: str, suffix: str) -> str:
    """What separates the names in the first line of a table of questions; empty if it is none."""
    if line.lstrip().startswith("{"):  # JSON, whose text may have a cell "question" in it
        return ""
    csv.field_size_limit(LONGEST_CELL)
    for delimiter in (",", ";", "\t"):  # spreadsheets write ; where the comma is decimal
        names = next(csv.reader([line], delimiter=delimiter), [])
        if any(name.strip().casefold() in QUESTION_FIELDS for name in names):
            return delimiter
    return TABLES.get(suffix.lower(), "")


def _of_table(
    lines: Iterable[str], delimiter: str, line: int, name: str
) -> Iterator[tuple[str, int, SourceRow]]:
    """The rows of a table whose names are in this line; an empty cell is a missing value."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    number = 0
    try:
        names = [column.strip() for column in next(reader)]
        before = reader.line_num
        for cells in reader:
            where = f"{name}, line {line + before}"
            before = reader.line_num
            if any(map(str.strip, cells)):
                if any(map(str.strip, cells[len(names) :])):
                    raise ConfigError(f"{where}: it has more cells than the first row has names")
                number += 1
                row = {column: cell for column, cell in zip(names, cells, strict=False) if cell}
                yield where, number, row
    except csv.Error as error:
        raise ConfigError(f"{name}, line {line + before}: this is not CSV: {error}") from error


def _constant(name: str) -> None:
    """NaN, which pandas writes for what is missing, as None."""
    if name != "NaN":
        raise ValueError(f"{name} is no number")


_JSON = json.JSONDecoder(parse_constant=_constant)


def read_questions(
    path: Path, to_question: ToQuestion | None = None, limit: int | None = None
) -> list[Question]:
    """The questions of a file with ``question`` (or ``problem``) and, if known, ``answer`` (or
    ``gold``, ``expected_answer``) and ``id``; see ``source_rows`` for its form.

    Args:
        to_question: for rows that are in another form.
        limit: of the questions; the rest of the file is not read.

    Raises:
        ConfigError: as ``source_rows``; a row that is no question, an id that comes twice, or no
            question at all.
    """

    def either(row: SourceRow, number: int) -> Question:
        if to_question is not None:
            try:
                return to_question(row, number)
            except KeyError:
                pass
        return plain_question(row, f"{path.stem}-{number + 1:04d}")

    found = (
        (where, place if to_question else number - 1, row)
        for place, (where, number, row) in enumerate(source_rows(path))
    )
    return questions(found, either, str(path), limit)


def questions(
    found: Iterable[tuple[str, int, SourceRow]],
    to_question: ToQuestion,
    source: str,
    limit: int | None = None,
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

    return unique(made(), source, limit)


def unique(
    questions: Iterable[tuple[Question, str]], source: str, limit: int | None = None
) -> list[Question]:
    """The questions, after a check that their ids differ; each comes with its place, for errors.

    Raises:
        ConfigError: an id comes twice, or there is no question.
    """
    kept: dict[str, Question] = {}
    for question, where in islice(questions, limit):
        name = question.id.encode("utf-8", "replace").decode()  # as the record has it
        question = replace(question, id=name)
        if name in kept:
            raise ConfigError(f"{where}: id {question.id!r} comes twice")
        kept[name] = question
    if not kept:
        raise ConfigError(f"{source}: there is no question in it", hint=FORMS)
    return list(kept.values())


def plain_question(row: SourceRow, default_id: str) -> Question:
    """The question of one row in our own form; other fields go into ``extra``.

    Raises:
        ConfigError: the row is no question.
    """
    has = f"; it has {', '.join(row)}" if row else ""
    row = dict(row)
    found = _take(row, QUESTION_FIELDS)
    text = _check(found, has if found is None else "")
    answer = as_answer(_take(row, ANSWER_FIELDS))
    name = _take(row, ("id",))
    row.pop("id", None)
    if isinstance(name, float) and name.is_integer():  # of a table with missing ones
        name = int(name)
    if isinstance(name, bool) or not isinstance(name, (str, int, type(None))) or name == "":
        raise ConfigError("the id must be text or a number")
    return Question(default_id if name is None else str(name), text, answer, row)


def _take(row: SourceRow, names: Iterable[str]) -> Any:
    """Takes the first of these fields that has a value out of a row; their case does not count."""
    for name in names:
        for key in (name, *(key for key in row if key.casefold() == name != key)):
            if row.get(key) is not None:
                return row.pop(key)
    return None


def as_answer(value: Any) -> str | None:
    """The right answer as text; None if it is not known: missing, NaN, or empty.

    Raises:
        ConfigError: it is neither text nor a number.
    """
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
        raise ConfigError("the answer must be text or a number", hint=ROW_HINT)
    if isinstance(value, float) and math.isinf(value):
        raise ConfigError("the answer must be a finite number", hint=ROW_HINT)
    text = "" if value is None else str(value)
    return text if text.strip() else None


def _check(text: Any, has: str = "") -> str:
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"there is no 'question' text{has}", hint=ROW_HINT)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        why = "the question has half a surrogate pair in it; no tokenizer reads that"
        raise ConfigError(why) from error
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
