"""``lr-sglang run``: one question, a task, or a file of questions."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lr_sglang.cli import grading_options, options
from lr_sglang.errors import ConfigError, RecordError
from lr_sglang.modes import MODES

if TYPE_CHECKING:
    from lr_sglang.grading import Grader
    from lr_sglang.results.store import Store
    from lr_sglang.tasks import Question

RUNS = Path("runs")


@click.command()
@click.argument("question", required=False)
@options.source
@click.option(
    "--mode",
    type=click.Choice(list(MODES)),
    multiple=True,
    help="How to answer; give it again to compare.  [default: lookahead, or lookahead+sd with a token layer]",
)
@options.chosen
@click.option("--samples", type=click.IntRange(min=1), default=1, help="Answers per question.")
@click.option("--concurrency", type=click.IntRange(min=1), default=1, help="Answers at a time.")
@grading_options.options
@options.program
@options.method
@options.token_layer
@options.sampling
@options.runtimes
@click.option("--name", help="Of the run, for its folder.  [default: the task's]")
@options.resume
@options.output
def run(question: str | None, **given: Any) -> None:
    """Answers questions, and leaves a record of each.

    Give one QUESTION (- reads it from standard input), or --task, or --input. With no other options three small
    models that come with the package answer, on this machine's CPU.

    \b
    Examples:
      lr-sglang run "Ava has 5 toys. Ben brings 2 bags with 6 toys each. How many has Ava?"
      lr-sglang run --task pocket --limit 20 --samples 2
      lr-sglang run --task pocket --mode autoregressive --mode lookahead+sd --token-layer ngram
      lr-sglang run --input questions.jsonl --deployment qwen3.toml --concurrency 8
      lr-sglang run --task humaneval --allow-code-execution --deployment qwen3.toml
      lr-sglang run --attach qwen3-4gpu --input questions.jsonl
      lr-sglang run --task pocket --target http://localhost:30000 --mode autoregressive
    """
    from lr_sglang.cli import run_work
    from lr_sglang.cli.display import Display
    from lr_sglang.cli.run_options import RunOptions
    from lr_sglang.cli.settings import settle_modes

    display = Display(as_json=given["json"], quiet=given["quiet"], answers=True)
    source, questions = questions_of(question, given)
    plan, modes = settle_modes(RunOptions.of(given))
    if shapes := plan.shapes(modes):
        display.warn(f"{', '.join(shapes)}: weights are random; the text means nothing, only speeds can be measured")
    suffix = suffix_of(given)
    name = re.sub(r"[^\w.-]+", "-", given["name"] or (Path(source).stem if source else "question"))
    folder = chosen_folder(name, given["output"], given["resume"])
    asked = {"questions": source or questions[0].question, "prompt_suffix": suffix}
    with ExitStack() as stack:
        grader = stack.enter_context(_grader(given, questions)) if source else None
        if grader is not None and (lacking := grading_options.lacks(grader)):
            display.warn(f"{lacking}; lr-sglang grade {folder} does it later")
        numbers = given["samples"], given["concurrency"], given["launch_timeout"]
        order = run_work.SampleRun(plan, questions, modes, asked, *numbers, grader=grader)
        store = stack.enter_context(run_work.open_store(folder, order, resume=given["resume"]))
        if store.cut:
            display.note(f"the last record was cut off, and its sample is made again ({store.cut} bytes)")
        same_questions(store, questions)
        run_work.carry_out(order, store, display)


def questions_of(question: str | None, given: dict[str, Any]) -> tuple[str, list[Question]]:
    """The name of the source (none for a single question) and what it asks.

    Raises:
        UsageError: none or several of a question, a task and a file are given.
        ConfigError: the question is no text.
    """
    from lr_sglang import tasks

    of_task = given["task"] is not None or given["input"] is not None
    if of_task == (question is not None):
        raise click.UsageError("give one QUESTION, or --task NAME, or --input FILE")
    if question is not None:
        if given["limit"] or given["range"]:
            raise click.UsageError("--limit and --range are for --task and --input")
        try:
            text = sys.stdin.read().removesuffix("\n") if question == "-" else question
            text.encode("utf-8")  # bytes of an argument that are not UTF-8 have become half surrogates
        except UnicodeError as error:
            raise ConfigError(f"the question is not UTF-8 text: {error}") from error
        if not text.strip():
            raise ConfigError("the question is empty")
        return "", [tasks.Question("question", text)]
    span = tasks.parse_range(given["range"]) if given["range"] else None
    if given["task"] is None:
        return given["input"].name, tasks.load(given["input"], given["limit"], span)
    tasks.get(given["task"])
    return given["task"], tasks.load(given["task"], given["limit"], span, file=given["input"])


def _grader(given: dict[str, Any], questions: list[Question]) -> Grader:
    from lr_sglang import tasks

    return grading_options.grader(tasks.get(given["task"]) if given["task"] else None, questions, given)


def suffix_of(given: dict[str, Any]) -> str:
    """What is appended to each question."""
    from lr_sglang.tasks.task import suffix_for

    if given["prompt_suffix"] is not None:
        return str(given["prompt_suffix"])
    return suffix_for(given["task"] or (str(given["input"]) if given["input"] else None))


def chosen_folder(name: str, output: Path | None, resume: bool) -> Path:
    """Where records go.

    Raises:
        RecordError: there is no run to resume.
    """
    from lr_sglang.results.store import RUN, new_folder, newest_folder

    if output is not None:
        if resume and not (output / RUN).is_file():
            raise RecordError(f"{output}: there is no run in it to resume", hint="without --resume one is begun there")
        return output
    return newest_folder(RUNS, name) if resume else new_folder(RUNS, name)


def same_questions(store: Store, questions: list[Question]) -> None:
    """Raises a ``RecordError`` where a record is of another question than the one that has its name now."""
    asked = {q.id: q.question for q in questions}
    for record in store.records.values():
        if asked.get(record["question_id"], record["question"]) != record["question"]:
            raise RecordError(
                f"{store.folder}: question {record['question_id']} was another one then",
                hint="the file of questions has changed; give another --output",
            )
