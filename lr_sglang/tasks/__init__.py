"""Questions: built-in tasks, a user's own, files of them, and single ones."""

from __future__ import annotations

import re
from pathlib import Path

from lr_sglang import plugin_files
from lr_sglang.errors import ConfigError
from lr_sglang.tasks.catalogue import find, get, names
from lr_sglang.tasks.hub import TaskUnavailable
from lr_sglang.tasks.question import Question, of_file
from lr_sglang.tasks.task import Task

__all__ = [
    "Question",
    "Task",
    "TaskUnavailable",
    "find",
    "get",
    "load",
    "names",
    "parse_range",
]


def load(
    name_or_path: str | Path,
    limit: int | None = None,
    span: slice | None = None,
    *,
    file: Path | None = None,
) -> list[Question]:
    """Reads a task.

    Args:
        name_or_path: a task (see ``find``), or a JSONL file: one object a line with ``question``
            and, optionally, ``answer`` (or ``gold``) and ``id``.
        span: which questions, counted from 0; ``limit`` then takes the first ones of them.
        file: with the questions of the task; its rows may be in the form of the task's data set.

    Raises:
        ConfigError: no such task or file, a line that is no question, an id that comes twice, or no
            question left.
        TaskUnavailable: the task's questions cannot be read on this machine.
    """
    found = find(name_or_path) if isinstance(name_or_path, str) else None
    path = name_or_path if found is None else file
    if path is not None:
        path = plugin_files.expanded(path)
        if not path.is_file():
            why = "this is a folder" if path.is_dir() else "no such file"
            hint = f"built-in tasks: {', '.join(names())}; anything else is a JSONL file"
            raise ConfigError(f"{path}: cannot read the questions: {why}", hint=hint)
    everything = found.questions(path) if found else of_file(plugin_files.expanded(name_or_path))
    chosen = everything[span or slice(None)][:limit]
    if not chosen:
        name = name_or_path if found else Path(name_or_path).name
        raise ConfigError(f"{name}: no question is left; it has {len(everything)}")
    return chosen


def parse_range(text: str) -> slice:
    """``10:20``, ``:5`` or ``190:`` as a slice.

    Raises:
        ConfigError: it is something else.
    """
    match = re.fullmatch(r"\s*(\d*)\s*:\s*(\d*)\s*", text)
    if match is None:
        raise ConfigError(
            f"range: {text!r} is no range", hint="A:B, for example 10:20 for the questions 10 to 19"
        )
    first, last = (int(part) if part else None for part in match.groups())
    if first is not None and last is not None and first >= last:
        raise ConfigError(
            f"range: {text} is empty", hint="A:B takes the questions A to B-1, counted from 0"
        )
    return slice(first, last)
