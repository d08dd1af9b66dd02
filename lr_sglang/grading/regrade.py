"""Grading the records of a run again, without generating anything."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from pathlib import Path

from lr_sglang import plugin_files, tasks
from lr_sglang.errors import ConfigError, RecordError
from lr_sglang.grading.grader import Grader
from lr_sglang.json_text import dumped
from lr_sglang.results.record import Record
from lr_sglang.results.store import (
    RECORDS,
    RUN_FILE,
    each_record,
    locked_folder,
    record_line,
    replace_file,
    run_json,
    unread,
    writing,
)
from lr_sglang.tasks import Question, Task

_NAMES = {True: "correct", False: "wrong", None: "ungraded"}


def regrade(folder: Path, key: str = "") -> str:
    """Grades all records of a folder as its task does. Only ``answer``, ``correct`` and ``grade``
    are written, those of all records at once; with a key ``gold`` and ``extra`` too.

    Args:
        key: a file of questions, or a task, whose right answers and other fields the records take.

    Returns:
        How many verdicts there are of which kind, how many changed, and what was left out.

    Raises:
        RecordError: there are no records, the key has another question, or a run uses the folder.
        ConfigError: the task whose own grader graded them cannot be found, or the key.
    """
    path = folder / RECORDS
    task = _task(folder)
    kind = task.grader if task else "math"
    questions = {one.id: one for one in _questions(key, task)} if key else {}
    with writing(folder, ""):
        lock = locked_folder(folder, "wait for it")
    with lock:
        others: list[str] = []
        kept = unread(path)
        records = list(each_record(folder, others.append))
        changed = moved = 0
        with Grader(kind) as grader:
            for record in records:
                if question := questions.get(record["question_id"]):
                    moved += _take(record, question)
                elif key:
                    others.append(f"question {record['question_id']} is not in {key}")
                fields = grader.verdict(record)
                changed += record["correct"] is not fields["correct"]
                record.update(fields)
        with writing(path, ""):
            replace_file(path, chain(map(record_line, records), kept))
    counts = Counter(_NAMES[record["correct"]] for record in records)
    said = ", ".join(f"{counts[name]} {name}" for name in _NAMES.values() if counts[name])
    verdicts = "verdict" if changed == 1 else "verdicts"
    told = [f"{len(records)} records: {said or 'none'}; {changed or 'no'} {verdicts} changed"]
    told += [f"{moved} of them took another answer or field from {key}"] if key else []
    return "; ".join([*told, *others[:1], *(["..."] if len(others) > 1 else [])])


def _take(record: Record, question: Question) -> bool:
    """Enters the right answer and the other fields of a question; returns whether they differ."""
    if record["question"] != question.question:
        raise RecordError(f"question {question.id} of the key is another one than the record's")
    new = {"gold": question.answer, "extra": json.loads(dumped(question.extra))}
    differs = any(record.get(name) != value for name, value in new.items())
    record.update(new)
    return differs


def _questions(key: str, task: Task | None) -> list[Question]:
    """The questions of a file, in the form of the run's task or in our own, or of a task."""
    path = plugin_files.expanded(key)
    if plugin_files.named(key).file or not path.is_file():
        return tasks.get(key).questions()
    return task.questions(path) if task else tasks.load(path)


def _task(folder: Path) -> Task | None:
    """The run's task; None of a file of questions, which is graded as mathematics."""
    try:
        name = str(next(iter(run_json(folder)["config"].values()))["questions"])
    except (KeyError, TypeError, StopIteration, AttributeError) as error:
        why = f"{folder}: there is no run in it ({RUN_FILE} is missing or damaged)"
        raise RecordError(why) from error
    if found := tasks.find_task(name):
        return found
    if plugin_files.named(name).file:
        raise ConfigError(
            f"{folder}: the task {name!r}, whose grader graded it, is not here",
            hint="start in the folder from which the run was started",
        )
    return None
