"""``lr-sglang grade``: the records of a run graded again, with nothing generated."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lr_sglang.cli import options, runs
from lr_sglang.errors import ConfigError
from lr_sglang.tasks.task import GRADERS

if TYPE_CHECKING:
    from lr_sglang.grading import Grader
    from lr_sglang.grading.regrade import Changes

SHOWN = 20  # changed verdicts that are listed


@click.command()
@click.argument("folder", metavar="DIR", type=options.ANY_PATH)
@click.option("--task", metavar="NAME", help="Whose answers they are.  [default: the run's]")
@click.option(
    "--input",
    type=options.ANY_PATH,
    metavar="FILE",
    help="Where the task's questions are, if that is needed.",
)
@click.option(
    "--grader", type=click.Choice(GRADERS), help="Another kind of grading.  [default: the task's]"
)
@options.grading
@click.option(
    "--jobs",
    type=options.AT_LEAST_1,
    help="Answers at a time.  [default: the number of processors]",
)
@options.as_json
@options.quiet
def grade(folder: Path, **given: Any) -> None:
    """Grades the records of a run again, and says which verdicts changed.

    Only 'answer', 'correct' and 'grade' of the records in DIR are written, all of them at once at
    the end. A grading that was stopped goes on when it is called again.

    \b
    Examples:
      lr-sglang grade runs/gsm8k_20260101_120000
      lr-sglang grade runs/code --allow-code-execution
      lr-sglang grade runs/open --rater http://localhost:30000
    """
    import os

    from lr_sglang.cli import source
    from lr_sglang.cli.display import Display
    from lr_sglang.grading import regrade

    display = Display(as_json=given["json"], quiet=given["quiet"])
    with _grader(folder, given) as grader:
        if lacking := source.lacks(grader):
            display.warn(lacking)
        display.begin(None, 0, "grading")
        try:
            changes = regrade.regrade(
                folder, grader, given["jobs"] or os.cpu_count() or 1, display.update
            )
        finally:
            display.end()
    click.echo(json_format.dumps(changes.to_dict(), indent=1) if given["json"] else _table(changes))
    source.tell_failures(runs.read(folder), display, folder)


def _grader(folder: Path, given: dict[str, Any]) -> Grader:
    from lr_sglang import tasks
    from lr_sglang.cli import source
    from lr_sglang.grading import Grader, regrade

    name = given["task"] or regrade.asked(folder)
    found = tasks.get(name) if given["task"] else tasks.find(name)
    before = regrade.graded_by(folder)
    if found is None and given["grader"] is None and before not in ("", *GRADERS):
        raise ConfigError(
            f"the task {name!r}, whose grader {before!r} graded them, is not here",
            hint="give --task, or --grader",
        )
    kind = given["grader"] or (found.task.grader if found else before or "math")
    hidden = {}
    if (
        kind == "livecodebench" and given["allow_code_execution"]
    ):  # its tests are too long for records
        asked = name if found else "livecodebench"
        hidden = {q.id: q.hidden for q in tasks.load(asked, file=given["input"])}
    return Grader(kind, source.rules(given), hidden)


def _table(changes: Changes) -> str:
    verdicts = ", ".join(f"{count} {name}" for name, count in changes.verdicts.items() if count)
    lines = [f"{changes.records} records: {verdicts or 'none'}"]
    if changes.resumed:
        lines.append(f"{changes.resumed} had their verdict from a grading that was stopped")
    lines += [f"{count} ungraded: {reason}" for reason, count in changes.reasons.items()]
    names = {True: "correct", False: "wrong", None: "ungraded"}
    lines.append(
        f"{len(changes.turned) or 'no'} verdict{'' if len(changes.turned) == 1 else 's'} changed"
    )
    for (question, sample, mode), before, now in changes.turned[:SHOWN]:
        lines.append(f"  {question} sample {sample} {mode}: {names[before]} -> {names[now]}")
    if len(changes.turned) > SHOWN:
        lines.append(f"  and {len(changes.turned) - SHOWN} more (--json has all)")
    return "\n".join(lines)
