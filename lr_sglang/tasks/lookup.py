"""A task by name: ``NAME`` or ``NAME:all`` (all of its questions) is a built-in one, and
``FILE.py:NAME`` a ``Task`` of a user, or a function that gives one or gives questions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lr_sglang import plugin_files
from lr_sglang.errors import ConfigError, LookaheadError, did_you_mean
from lr_sglang.tasks.catalogue import CATALOGUE
from lr_sglang.tasks.task import Task


def names() -> list[str]:
    """The tasks that come with the package, by name."""
    return sorted(CATALOGUE)


def find(spec: str) -> Task | None:
    """The task of that name; None if there is none.

    Raises:
        ConfigError: it is a user's task, and cannot be loaded.
    """
    if (found := plugin_files.named(spec)) and found.argument is None:
        path = plugin_files.expanded(found.file)
        if not path.is_file():
            return None
        return _made(lambda: plugin_files.find(path, found.name), spec)
    task = CATALOGUE.get(spec.removesuffix(":all"))
    return replace(task, pick=None, choice="all") if task and spec.endswith(":all") else task


def get(spec: str) -> Task:
    """The task of that name.

    Raises:
        ConfigError: there is none, or it cannot be loaded.
    """
    found = find(spec)
    if found is None:
        others = "also FILE.py:NAME; a file of questions goes with --input"
        known = f"built-in tasks: {', '.join(names())}; {others}"
        hint = did_you_mean(spec, names(), known, cutoff=0.5)
        raise ConfigError(f"there is no task {spec!r}", hint=hint)
    return found


def _made(load: Callable[[], Any], spec: str) -> Task:
    hint = "docs/tasks.md has an example"
    try:
        found = load()
        if not isinstance(found, Task) and callable(found):
            made = found()
            questions = [] if isinstance(made, Task) else list(made)
            found = made if isinstance(made, Task) else Task(found.__name__, load=lambda: questions)
    except LookaheadError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"task {spec}: {error!r}", hint=hint) from error
    if not isinstance(found, Task):
        raise ConfigError(f"task {spec}: expected a Task, not {type(found).__name__}", hint=hint)
    return found
