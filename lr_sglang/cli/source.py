"""What a command asks, how it grades the answers, and where it puts the records."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lr_sglang import tasks
from lr_sglang.cli.display import Display
from lr_sglang.errors import ConfigError, GradingError, RecordError
from lr_sglang.grading import Grader
from lr_sglang.results.record import Brief
from lr_sglang.results.store import RUN, new_folder, newest_folder
from lr_sglang.results.summary import grading_failed
from lr_sglang.tasks import Question, Task
from lr_sglang.tasks.task import SUFFIX

RUNS = Path("runs")
Given = Mapping[str, Any]  # options by name


@dataclass(frozen=True)
class Source:
    """The questions of a task or of a file, or that of the command line (without a ``name``)."""

    name: str
    questions: list[Question]
    suffix: str  # appended to each question
    task: Task | None = None

    def grader(self) -> Grader:
        """The grader of the answers; a file of questions is graded as mathematics."""
        return Grader(self.task.grader if self.task else "math")


def of_command(given: Given, question: str | None = None) -> Source:
    """The questions of ``run`` and ``try``.

    Raises:
        UsageError: none or several of a question, a task and a file are given.
        ConfigError: the question is no text; or as ``tasks.load``.
    """
    if (given["task"] is not None or given["input"] is not None) == (question is not None):
        raise click.UsageError("give one QUESTION, or --task NAME, or --input FILE")
    if question is None:
        return (
            of_task(given["task"], given, given["input"])
            if given["task"] is not None
            else of_file(given)
        )
    if given["limit"] or given.get("range"):
        raise click.UsageError("--limit and run.range are for --task and --input")
    try:
        text = sys.stdin.read().removesuffix("\n") if question == "-" else question
        text.encode("utf-8")  # bytes of an argument that are not UTF-8 have become half surrogates
    except UnicodeError as error:
        raise ConfigError(f"the question is not UTF-8 text: {error}") from error
    if not text.strip():
        raise ConfigError("the question is empty")
    return Source("", [Question("question", text)], given.get("prompt_suffix") or "")


def of_task(name: str, given: Given, file: Path | None = None) -> Source:
    """A task, whose questions may be in a file."""
    found = tasks.get(name)
    return _chosen(name, name, given, found.suffix, found, file)


def of_file(given: Given) -> Source:
    """A file of questions."""
    return _chosen(given["input"].name, given["input"], given, SUFFIX)


def _chosen(
    name: str,
    of: str | Path,
    given: Given,
    suffix: str,
    task: Task | None = None,
    file: Path | None = None,
) -> Source:
    ends = (given.get("range") or ":").split(":")
    span = slice(*(int(end) if end else None for end in ends))
    suffix = suffix if given.get("prompt_suffix") is None else given["prompt_suffix"]
    return Source(name, tasks.load(of, given["limit"], span, file=file), suffix, task)


def folder_for(name: str, given: Given) -> Path:
    """The folder of the records: --output, else a new one in ``runs``, or with --resume the newest
    of that name.
    """
    name, output, resume = (
        re.sub(r"[^\w.-]+", "-", name),
        given["output"],
        given.get("resume"),
    )
    if output is None:
        return newest_folder(RUNS, name) if resume else new_folder(RUNS, name)
    if resume and not (output / RUN).is_file():
        raise RecordError(
            f"{output}: there is no run in it to resume", hint="without --resume one is begun there"
        )
    return Path(output)


def lacks(asked: Source) -> str:
    """What to say where no answer will be graded; empty if answers will be."""
    task = asked.task
    if task is None or task.grader != "none":
        return ""
    other = f"; lr-sglang report DIR --export {task.export} writes them for {task.export}"
    return f"{task.name}: answers get no grade here{other if task.export else ''}"


def tell_failures(records: Iterable[Brief], display: Display, folder: Path) -> None:
    """Warns if grading failed for some answers, with their number and the reason.

    Raises:
        GradingError: it failed for every answer, so that nothing was graded.
    """
    answers = [record for record in records if not record["error"]]
    failed = grading_failed(answers)
    if not failed:
        return
    reason, again = failed[-1]["grade"]["reason"], f"lr-sglang report {folder} --grade tries again"
    if len(failed) == len(answers):
        raise GradingError(
            f"no answer could be graded: {reason}", hint=f"the answers are kept; {again}"
        )
    display.warn(f"{len(failed)} of {len(answers)} answers could not be graded: {reason}; {again}")
