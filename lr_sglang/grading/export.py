"""The programs in the answers of a run, written for the tools that run and grade them."""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lr_sglang.errors import RecordError
from lr_sglang.grading import answers
from lr_sglang.results.record import Record
from lr_sglang.results.store import replace_file, writing


def export_answers(form: str, records: Iterable[Record], folder: Path) -> list[Path]:
    """Writes one file for each mode of a run.

    An answer without a program has an empty one, because these tools want all questions.

    Args:
        form: one of ``tasks.task.EXPORTS``: evalplus has a line for each sample,
            ``{"task_id", "solution"}``; livecodebench a list with ``{"question_id", "code_list"}``
            for each question.
        folder: where the files go.

    Raises:
        RecordError: the answers have no programs, or are not to the tool's questions.
    """
    by_mode = defaultdict(list)
    for record in sorted(records, key=lambda one: (one["question_id"], one["sample"])):
        by_mode[record["mode"]].append(record)
    written = []
    for mode, mine in by_mode.items():
        programs = [_solution(one) if form == "evalplus" else _program(one) for one in mine]
        if not any(programs):
            raise RecordError(f"{folder}: no answer of {mode} has a program")
        if form == "evalplus":
            lines = [
                {"task_id": one["question_id"], "solution": program}
                for one, program in zip(mine, programs, strict=True)
            ]
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
        else:
            lists: dict[str, list[str]] = defaultdict(list)
            for one, program in zip(mine, programs, strict=True):
                lists[one["question_id"]].append(program)
            table = [{"question_id": name, "code_list": codes} for name, codes in lists.items()]
            text = json.dumps(table, indent=1)
        path = folder / f"{form}-{mode}.{'jsonl' if form == 'evalplus' else 'json'}"
        with writing(path, ""):
            replace_file(path, [text.encode()])
        written.append(path)
    return written


def _program(record: Record, wanted: str = "") -> str:
    """The program of an answer, which has ``wanted`` in it; empty where there is none."""
    return "" if record["error"] else answers.code(record["text"], wanted)


def _solution(record: Record) -> str:
    """HumanEval's prompt and the function; a program that does not define it is taken as its body.

    The prompt comes first, because it has imports and helpers that an answer may leave out.
    """
    about: dict[str, Any] = record.get("extra") or {}
    if not {"prompt", "entry_point"} <= about.keys():
        why = f"question {record['question_id']} is none of HumanEval"
        raise RecordError(why, hint="evalplus grades the task humaneval")
    defined = f"def {about['entry_point']}"
    program = _program(record, defined)
    if program and defined not in program:
        program = textwrap.indent(textwrap.dedent(program), "    ")
    return f"{about['prompt']}\n{program}" if program else ""
