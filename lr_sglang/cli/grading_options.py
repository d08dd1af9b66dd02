"""Options of grading, and the grader that they ask for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lr_sglang.cli.options import together
from lr_sglang.errors import GradingError

if TYPE_CHECKING:
    from lr_sglang.cli.display import Display
    from lr_sglang.grading import Grader, Rules
    from lr_sglang.results.record import Record
    from lr_sglang.tasks import Found, Question

options = together(
    click.option("--allow-code-execution", is_flag=True, help="Run the code of answers, apart, to grade it."),
    click.option("--unsafe-code-execution", is_flag=True, help="With it: run it where nothing keeps it apart, too."),
    click.option("--rater", metavar="URL", help="Server of the model that rates open answers (mt-bench)."),
    click.option("--rater-model", metavar="NAME", help="Its name there.  [default: the first that the server has]"),
)


def rules(given: dict[str, Any]) -> Rules:
    """What grading may do.

    Raises:
        ConfigError: the rater is no URL.
    """
    from lr_sglang.grading import Rater, Rules

    rater = Rater(given["rater"], given["rater_model"] or "") if given["rater"] else None
    return Rules(
        given["allow_code_execution"],
        given["unsafe_code_execution"],
        rater=rater,
        workers=min(os.cpu_count() or 1, 4),
    )


def grader(found: Found | None, questions: Iterable[Question], given: dict[str, Any]) -> Grader:
    """The grader of a task; a file of questions is graded as mathematics."""
    from lr_sglang.grading import Grader

    kind = found.task.grader if found else "math"
    return Grader(kind, rules(given), {q.id: q.hidden for q in questions if q.hidden})


def tell_failures(records: Iterable[Record], display: Display, folder: Path) -> None:
    """Says that grading failed, how often and why.

    Raises:
        GradingError: it failed for every answer, so that nothing was graded.
    """
    from lr_sglang.results.summary import grading_failed

    answers = [record for record in records if not record["error"]]
    failed = grading_failed(answers)
    if not failed:
        return
    reason, again = failed[-1]["grade"]["reason"], f"lr-sglang grade {folder} does it again"
    if len(failed) == len(answers):
        raise GradingError(f"no answer could be graded: {reason}", hint=f"the answers are kept; {again}")
    display.warn(f"{len(failed)} of {len(answers)} answers could not be graded: {reason}; {again}")


def lacks(made: Grader) -> str:
    """Why all answers will stay ungraded; empty where they will not."""
    if made.name in ("humaneval", "livecodebench") and not made.rules.execute:
        return "answers are not graded: their code is run only with --allow-code-execution"
    if made.name == "mt-bench" and made.rules.rater is None:
        return "answers are not graded: they are rated only with --rater URL"
    return ""
