"""Questions: built-in tasks, a user's own, files of them, and single ones."""

from __future__ import annotations

from pathlib import Path

from lr_sglang import plugin_files
from lr_sglang.tasks.catalogue import find_task, get, task_names
from lr_sglang.tasks.question import Question, read_questions
from lr_sglang.tasks.task import Task, TaskUnavailable

__all__ = [
    "Question",
    "Task",
    "TaskUnavailable",
    "find_task",
    "get",
    "load",
    "task_names",
]


def load(
    name_or_path: str | Path,
    limit: int | None = None,
    *,
    file: Path | None = None,
) -> list[Question]:
    """Reads a task.

    Args:
        name_or_path: a task (see ``find_task``), or a file of questions (see ``read_questions``).
        limit: of the questions, which then are the first ones; no more than these are read.
        file: with the questions of the task; its rows may be in the form of the task's data set.

    Raises:
        ConfigError: no such task or file, a line that is no question, an id that comes twice, or no
            question left.
        TaskUnavailable: the task's questions cannot be read on this machine.
    """
    found = find_task(name_or_path) if isinstance(name_or_path, str) else None
    path = plugin_files.expanded(name_or_path if found is None else file or "")
    return (
        found.questions(path if file else None, limit)
        if found
        else read_questions(path, None, limit)
    )
