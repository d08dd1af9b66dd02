"""Grading the records of a run again, without generating anything."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from lr_sglang import plugin_files, tasks
from lr_sglang.errors import ConfigError, RecordError
from lr_sglang.grading.grader import Function, Grader
from lr_sglang.results.store import RECORDS, RUN, each_record, held, line_of, replace_file, writing

_NAMES = {True: "correct", False: "wrong", None: "ungraded"}


def regrade(folder: Path) -> str:
    """Grades all records of a folder as its task does. Only ``answer``, ``correct`` and ``grade``
    are written, those of all records at once.

    Returns:
        How many verdicts there are of which kind, and how many changed, in words.

    Raises:
        RecordError: there are no records, they are damaged, or a run uses the folder.
        ConfigError: the task whose own grader graded them cannot be found.
    """
    path = folder / RECORDS
    kind = _kind(folder)
    with held(folder, "a run is at work in", "wait for it"):
        records = list(each_record(folder))
        changed = 0
        with Grader(kind) as grader:
            for record in records:
                fields = grader.verdict(record)
                changed += record["correct"] is not fields["correct"]
                record.update(fields)
        with writing(path, ""):
            replace_file(path, map(line_of, records))
    counts = Counter(_NAMES[record["correct"]] for record in records)
    said = ", ".join(f"{counts[name]} {name}" for name in _NAMES.values() if counts[name])
    verdicts = "verdict" if changed == 1 else "verdicts"
    return f"{len(records)} records: {said or 'none'}; {changed or 'no'} {verdicts} changed"


def _kind(folder: Path) -> str | Function:
    """The kind of grading: that of the run's task, mathematics for a file of questions."""
    try:
        config = json.loads((folder / RUN).read_text(encoding="utf-8"))["config"]
        name = str(next(iter(config.values()))["questions"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration, AttributeError) as error:
        why = f"{folder}: there is no run in it ({RUN} is missing or damaged)"
        raise RecordError(why) from error
    if found := tasks.find(name):
        return found.grader
    if plugin_files.named(name):
        raise ConfigError(
            f"{folder}: the task {name!r}, whose grader graded it, is not here",
            hint="start in the folder from which the run was started",
        )
    return "math"
