"""Questions: the built-in task, files of them, and single ones."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lr_sglang.errors import ConfigError

DATA = Path(__file__).parent / "data"
GOLD = ("answer", "gold")


@dataclass(frozen=True)
class Question:
    """One question. ``gold`` is the known answer; ``extra`` what else the file says about it."""

    id: str
    question: str
    gold: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def names() -> list[str]:
    """The tasks that come with the package."""
    return sorted(file.stem for file in DATA.glob("*.jsonl"))


def load(name_or_path: str | Path, limit: int | None = None, span: slice | None = None) -> list[Question]:
    """Reads a task.

    Args:
        name_or_path: a built-in name (see ``names``), or a JSONL file: one object a line with ``question`` and,
            optionally, ``answer`` (or ``gold``) and ``id``.
        span: which questions, counted from 0; ``limit`` then takes the first ones of them.

    Raises:
        ConfigError: no such task or file, a line that is no question, an id that comes twice, or no question left.
    """
    path = DATA / f"{name_or_path}.jsonl" if str(name_or_path) in names() else Path(name_or_path).expanduser()
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        hint = f"built-in tasks: {', '.join(names())}; anything else is a JSONL file"
        raise ConfigError(f"{name_or_path}: cannot read the questions: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: this is not UTF-8 text: {error}") from error
    questions: dict[str, Question] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            question = _question(line, f"{path.name}, line {number}", f"{path.stem}-{number:04d}")
            if question.id in questions:
                raise ConfigError(f"{path.name}, line {number}: id {question.id!r} comes twice")
            questions[question.id] = question
    if not questions:
        raise ConfigError(f"{path}: there is no question in it")
    chosen = list(questions.values())[span or slice(None)][:limit]
    if not chosen:
        raise ConfigError(f"{path.name}: no question is left; it has {len(questions)}")
    return chosen


def parse_range(text: str) -> slice:
    """``10:20``, ``:5`` or ``190:`` as a slice.

    Raises:
        ConfigError: it is something else.
    """
    match = re.fullmatch(r"\s*(\d*)\s*:\s*(\d*)\s*", text)
    if match is None:
        raise ConfigError(f"range: {text!r} is no range", hint="A:B, for example 10:20 for the questions 10 to 19")
    first, last = (int(part) if part else None for part in match.groups())
    if first is not None and last is not None and first >= last:
        raise ConfigError(f"range: {text} is empty", hint="A:B takes the questions A to B-1, counted from 0")
    return slice(first, last)


def _question(line: str, where: str, default_id: str) -> Question:
    try:
        table = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: this is not JSON: {error}") from error
    hint = 'a line is an object such as {"question": "What is 6 times 7?", "answer": "42"}'
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: expected an object", hint=hint)
    text = table.pop("question", None)
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{where}: there is no 'question' text", hint=hint)
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ConfigError(f"{where}: the question has half a surrogate pair in it; no tokenizer reads that")
    gold = next((table.pop(key) for key in GOLD if table.get(key) is not None), None)
    if isinstance(gold, bool) or not isinstance(gold, (str, int, float, type(None))):
        raise ConfigError(f"{where}: the answer must be text or a number", hint=hint)
    name = table.pop("id", default_id)
    if isinstance(name, bool) or not isinstance(name, (str, int)) or name == "":
        raise ConfigError(f"{where}: the id must be text or a number")
    return Question(str(name), text, None if gold is None else str(gold), table)
