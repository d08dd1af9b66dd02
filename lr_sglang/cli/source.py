"""What a command asks, how it grades the answers, and where it puts the records."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

import click

from lr_sglang import plugin_files, tasks
from lr_sglang.cli import streams
from lr_sglang.cli.display import Display
from lr_sglang.cli.settings import Given
from lr_sglang.errors import ConfigError, GradingError, LookaheadError, RecordError
from lr_sglang.grading import Grader
from lr_sglang.results.record import Brief, grading_failed
from lr_sglang.results.store import RUN_FILE, new_folder
from lr_sglang.tasks import Question, Task
from lr_sglang.tasks.task import SUFFIX

RUNS_FOLDER = Path("runs")


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
    """The questions of ``run``.

    Raises:
        UsageError: none or several of a question, a task and a file are given.
        ConfigError: the question is no text; or as ``tasks.load``.
    """
    named = [f"--{name} {given[name]}" for name in ("task", "input") if given[name] is not None]
    if question is None and not named:
        raise click.UsageError("give one QUESTION, or --task NAME, or --input FILE")
    if question is not None and named:
        if given["task"] is not None:
            tasks.get(given["task"])  # a misspelt name is the first that is wrong
        raise click.UsageError(
            f"QUESTION {shorten(question, 40)!r} and {' and '.join(named)} were given: give one"
        )
    if question is None:
        return (
            of_task(given["task"], given, given["input"])
            if given["task"] is not None
            else of_file(given)
        )
    if given["limit"]:
        raise click.UsageError("--limit is for --task and --input")
    text = _text_of(question)
    if not text.strip():
        here = question == "-" and "stdin" in streams.closed
        raise ConfigError(f"the question is empty{': standard input is closed' if here else ''}")
    return Source("", [Question("question", text)], given.get("prompt_suffix") or "")


def _text_of(question: str) -> str:
    """The question of the command line, or that of standard input (``-``), read as a file is."""
    raw = sys.stdin.buffer.read() if question == "-" else os.fsencode(question)
    try:
        return plugin_files.text_of(raw).removesuffix("\n")
    except UnicodeError as error:
        raise ConfigError(f"the question is not UTF-8 text: {error}") from error


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
    suffix = suffix if given.get("prompt_suffix") is None else given["prompt_suffix"]
    return Source(name, tasks.load(of, given["limit"], file=file), suffix, task)


def folder_for(name: str, given: Given) -> Path:
    """The folder of the records: --output, else a new one in ``runs``, which --print only names."""
    output = given["output"]
    resume = given.get("resume")
    if output is None:
        if resume:
            raise click.UsageError("--resume goes with --output DIR, which the run was begun in")
        if given.get("print"):
            return RUNS_FOLDER / f"{name}_DATE_TIME"
        return new_folder(RUNS_FOLDER, re.sub(r"[^\w.-]+", "-", name))
    if resume and not (output / RUN_FILE).is_file():
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
    reason = failed[-1]["grade"]["reason"]
    again = f"lr-sglang report {folder} --grade tries again"
    if len(failed) == len(answers):
        raise GradingError(
            f"no answer could be graded: {reason}", hint=f"the answers are kept; {again}"
        )
    display.warn(f"{len(failed)} of {len(answers)} answers could not be graded: {reason}; {again}")


def need_an_answer(records: Sequence[Brief]) -> None:
    """Raises the error of the last record if all of them have one."""
    if records and all(record["error"] for record in records):
        error = records[-1]["error"]
        raise LookaheadError(error["message"], role=error["role"], hint=error["hint"])
