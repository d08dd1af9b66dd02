"""Questions: built-in tasks, those of third parties, files of them, and single ones."""

from __future__ import annotations

import re
from pathlib import Path

from lr_sglang import plugin_files
from lr_sglang.errors import ConfigError
from lr_sglang.tasks.lookup import GROUP, Found, find, get, names
from lr_sglang.tasks.question import Question, of_file
from lr_sglang.tasks.sources import File, Own
from lr_sglang.tasks.task import Task, TaskUnavailable

__all__ = [
    "GROUP",
    "Found",
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
    path = plugin_files.expanded(file if found and file is not None else name_or_path)
    if found is None:
        if not path.is_file():
            why = "this is a folder" if path.is_dir() else "no such file"
            hint = f"built-in tasks: {', '.join(names())}; anything else is a JSONL file"
            raise ConfigError(f"{path}: cannot read the questions: {why}", hint=hint)
        everything = of_file(path)
    elif file is not None:
        own = next((one for one in found.task.sources if isinstance(one, Own)), None)
        source = File(path, own.to_question if own else None)
        if reason := source.missing():
            raise ConfigError(reason)
        everything = found.task.questions(source, everything=found.everything)
    else:
        everything = found.questions()
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
