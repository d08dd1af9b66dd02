"""``lr-sglang run``: one question, a task, or a file of questions."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from lr_sglang.cli import options, streams


@click.command()
@click.argument("question", required=False)
@options.source
@options.modes(
    "How to answer; give it again to compare.  [default: lookahead, or lookahead+sd with a "
    "token layer]"
)
@options.limit
@click.option("--samples", type=options.SAMPLES, default=1, help="Answers per question.")
@click.option("--concurrency", type=options.AT_LEAST_1, default=1, help="Answers at a time.")
@options.program
@options.method
@options.token_layer
@options.sampling
@options.runtimes
@options.assign(run=options.RunSettings)
@options.resume
@options.output
def run(question: str | None, **given: Any) -> None:
    """Answers questions, and leaves a record of each.

    Give one QUESTION (- reads it from standard input), or --task, or --input. With no other options
    three small models that come with the package answer, on this machine's CPU. With --json its
    records are printed, one a line (docs/metrics.md); 'report DIR --json' has their figures.

    \b
    Examples:
      lr-sglang run "Ava has 5 toys. Ben brings 2 bags with 6 toys each. How many has Ava?"
      lr-sglang run --task pocket --limit 20 --samples 2
      lr-sglang run --task pocket --mode autoregressive --mode lookahead+sd --token-layer ngram
      lr-sglang run --input questions.jsonl --deployment qwen3.toml --concurrency 8
      lr-sglang run --attach qwen3-4gpu --input questions.jsonl
      lr-sglang run --task pocket --target http://localhost:30000 --mode autoregressive
    """
    from lr_sglang.bench import order
    from lr_sglang.bench.execution import Execution
    from lr_sglang.cli import source
    from lr_sglang.cli.display import Display
    from lr_sglang.cli.report import tell
    from lr_sglang.cli.settings import settle
    from lr_sglang.cli.source import need_an_answer

    display = Display(as_json=given["json"], quiet=given["quiet"], answers=True)
    asked = source.of_command(given, question)
    plan = settle(given).checked()
    if asked.name and asked.suffix:
        other = "-o run.prompt_suffix=TEXT replaces it"
        display.note(f"every question ends with: {asked.suffix} ({other})")
    folder = source.folder_for(Path(asked.name).stem or "question", given)
    items = order.samples_of(asked.questions, given["samples"])
    task = asked.name or asked.questions[0].question
    made = order.side_by_side(plan, task, asked.suffix, items, given["concurrency"])
    execution = Execution(folder, made, display, given["samples"], plan.deployment.launch_timeout)
    with ExitStack() as stack:
        if asked.name:
            execution.graders[task] = stack.enter_context(asked.grader())
            if lacking := source.lacks(asked):
                display.warn(lacking)
        records = execution.run(resume=given["resume"])
    if given["json"]:
        for record in records:
            streams.write_json(record.whole())
    elif len(records) == 1:
        display.single(records[0].whole(), folder)
    else:
        tell(folder, display)
    need_an_answer(records)
    source.tell_failures(records, display, folder)
