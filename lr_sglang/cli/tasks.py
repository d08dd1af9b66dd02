"""``lr-sglang tasks``: the tasks, and whether their questions can be read on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lr_sglang.cli import options, streams

if TYPE_CHECKING:
    from lr_sglang.tasks import Task

NAME_WIDTH = 18


@click.command()
@click.argument("name", required=False)
@options.as_json
def tasks(name: str | None, json: bool) -> None:
    """Lists the tasks, or shows one: its prompt, its data set, and which of its questions are
    taken.

    \b
    Examples:
      lr-sglang tasks
      lr-sglang tasks gsm8k
      lr-sglang tasks mine.py:TASK
    """
    from lr_sglang import tasks as known

    shown = [about(known.get(one)) for one in ([name] if name else known.task_names())]
    if json:
        table = shown[0] if name else shown
        streams.write_json(table, indent=1)
    else:
        streams.write_output(_one(shown[0]) if name else _list(shown))


def about(task: Task) -> dict[str, Any]:
    """The description of a task."""
    from lr_sglang.errors import LookaheadError

    offline = task.hub is None
    questions = example = None
    problem = task.hub.missing() if task.hub else ""
    hint = ""
    if offline:
        try:
            read = task.questions()
            questions = len(read)
            example = read[0].question
        except LookaheadError as error:
            problem = error.message
            hint = error.hint
    return {
        "task": task.name,
        "about": task.about,
        "suffix": task.suffix,
        "grader": getattr(task.grader, "__name__", task.grader),
        "export": task.export,
        "choice": task.choice,
        "source": task.hub.place if task.hub else "",
        "offline": offline,
        "questions": questions,
        "example": example,
        "problem": problem,
        "hint": hint,
    }


def _state(table: dict[str, Any]) -> str:
    if table["questions"] is not None:
        return f"{table['questions']} questions" + (", offline" if table["offline"] else "")
    return "not here" if table["problem"] else "from the hub, if there is a network or it is cached"


def _list(tables: list[dict[str, Any]]) -> str:
    lines = [
        f"{one['task']:<{NAME_WIDTH}}{one['about']}\n{'':<{NAME_WIDTH}}  {_state(one)}"
        for one in tables
    ]
    return "\n".join([*lines, "", "also: FILE.py:NAME, and any JSONL or CSV file with --input"])


def _one(table: dict[str, Any]) -> str:
    graded = f"none here; lr-sglang report DIR --export {table['export']}"
    rows = [
        ("task", table["task"]),
        ("about", table["about"]),
        ("questions", table["choice"]),
        ("here", _state(table)),
        ("grader", graded if table["export"] else table["grader"]),
        ("prompt", "QUESTION" + (f"\\n{table['suffix']}" if table["suffix"] else "")),
    ]
    rows += [(key, table[key]) for key in ("source", "problem", "hint") if table[key]]
    text = "\n".join(f"{key + ':':<{NAME_WIDTH}}{value}" for key, value in rows)
    return text + (f"\n\nthe first question:\n{table['example']}" if table["example"] else "")
