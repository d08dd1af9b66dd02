"""``lr-sglang try`` and ``demo``: modes side by side, on one's own questions and servers, and on
the pocket models.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from lr_sglang import tasks
from lr_sglang.bench import order
from lr_sglang.cli import options, source
from lr_sglang.cli.display import Display
from lr_sglang.cli.execute import Execution, need_an_answer
from lr_sglang.cli.settings import modes_of, settle
from lr_sglang.modes import MODES

if TYPE_CHECKING:
    from lr_sglang.results.gain import Gain

QUESTIONS = 20
ACCURACY = {
    "kept": ", so it is kept",
    "worse": ", which is more than chance",
    "open": ", within chance",
}
AHEAD = [mode.name for mode in MODES.values() if mode.ahead and not mode.lossless]
SMALL = ("autoregressive", "lookahead")
CLOSING = """\
The pocket models are a demonstration: they know one kind of problem. In the larger
body the target's words are theirs, and its cost is that of 199 million parameters."""


@click.command("try")
@options.source
@click.option(
    "--mode",
    type=click.Choice(AHEAD),
    help="How to look ahead.  [default: lookahead, or lookahead+sd where the servers have a "
    "token layer]",
)
@options.chosen
@click.option("--concurrency", type=options.AT_LEAST_1, default=1, help="Answers at a time.")
@options.method
@options.token_layer
@options.sampling
@options.runtimes
@click.option("--name", help="Of the run, for its folder.  [default: try]")
@options.resume
@options.output
def try_(**given: Any) -> None:
    """Answers questions with lookahead and without, in turns, and says whether it pays.

    Each turn begins with empty caches, and what is answered at the same time is answered in the
    same mode.

    20 questions are asked if --limit does not say how many. "Yes" is a speed-up whose whole 95 %
    interval is above 1, with no loss of accuracy beyond chance where the right answers are known.
    What it costs is said too: the tokens that the target writes and reads for each token of an
    answer.

    \b
    Examples:
      lr-sglang try --attach qwen3-4gpu --input my.jsonl
      lr-sglang try --attach qwen3-4gpu --input my.jsonl --mode auto --concurrency 8 --limit 100
      lr-sglang try --task pocket
    """
    if given["limit"] is None and not given["range"]:
        given["limit"] = QUESTIONS
    asked = source.of_command(given)
    (usual,) = modes_of({**given, "mode": ()})
    mode = given["mode"] or usual
    layered = (
        MODES[mode].token_layer if MODES[mode].token_layer is not None else MODES[usual].token_layer
    )
    plain = "sd" if layered else "autoregressive"
    plan = settle({**given, "mode": (plain, mode)}).checked()
    folder = source.folder_for("try", given)
    items = order.samples_of(asked.questions, 1)
    made = order.side_by_side(plan, asked.name, asked.suffix, items, given["concurrency"])
    display = Display(as_json=given["json"], quiet=given["quiet"])
    warm_up = asked.questions[-1].question
    execution = Execution(folder, made, display, 1, given["launch_timeout"], warm_up)
    need_an_answer(execution.run(resume=given["resume"]))
    from lr_sglang.results import collection  # it imports SciPy, which takes seconds
    from lr_sglang.results.gain import gain

    found = gain(collection.read([folder]), mode, plain)
    if given["json"]:
        click.echo(json.dumps({"output": str(folder), **found.to_dict()}))
    else:
        click.echo("\n".join(words(found)))
    display.note(f"records: {folder}")


def words(found: Gain) -> list[str]:
    """The verdict and the figures behind it, a line each."""
    speed, plain = found.speed, found.plain
    between = (
        ""
        if speed.low is None or speed.high is None
        else f" (95 %: {speed.low:.2f} to {speed.high:.2f})"
    )
    asked = f"{speed.questions} question{'s' * (speed.questions != 1)}"
    answer = (
        ("Yes" if found.pays else "No") if found.clear else "Too few questions to tell (--limit)"
    )
    lines = [
        f"{answer}: {found.mode} has {speed.value:.2f}x the speed of {plain}{between}, {asked}."
    ]
    if found.accuracy is not None:
        difference = f"{100 * found.accuracy.value:+.1f} points"
        lines.append(f"Accuracy: {difference} against {plain}{ACCURACY[found.accuracy.verdict]}.")
    for what, (ahead, alone) in (("writes", found.written), ("reads", found.read)):
        lines.append(
            f"The target {what} {ahead:.2f} tokens for each token of an answer, {alone:.2f} "
            f"with {plain}."
        )
    return lines


@click.command()
@click.option(
    "--questions",
    type=click.IntRange(1, 190),
    help="Problems to answer.  [default: 4; with --small 10]",
)
@click.option(
    "--small", is_flag=True, help="The target as it is, 6 million parameters, in two modes."
)
@click.option("--temperature", type=float, help="0 is greedy.  [default: the deployment's]")
@click.option("--seed", type=int, help="Of the run.  [default: 0]")
@options.output
def demo(questions: int | None, small: bool, **given: Any) -> None:
    """Answers a few problems in the four modes and compares them.

    Three SGLang servers are started on this machine's CPU, with the pocket models that come with
    the package, and then three whose target has a token layer. The target is in a larger body, so
    that it is bound by memory as a large model is.

    \b
    Examples:
      lr-sglang demo
      lr-sglang demo --small
    """
    modes = (
        SMALL
        if small
        else tuple(name for name, mode in MODES.items() if mode.token_layer is not None)
    )
    held_out = tasks.load("pocket")
    chosen, spare = held_out[: questions or (10 if small else 4)], held_out[-1].question
    plan = settle({**given, "deployment": "pocket" if small else "pocket-body", "mode": modes})
    made = order.side_by_side(plan, "pocket", "", order.samples_of(chosen, 1))
    display = Display(as_json=given["json"], quiet=given["quiet"], answers=True)
    display.note(
        f"{len(chosen)} problems, each answered in {len(modes)} modes by SGLang servers on "
        "this machine"
    )
    folder = source.folder_for("demo", given)
    records = Execution(folder, made, display, warm_up=spare).run()
    display.many(records, folder)
    need_an_answer(records)
    display.note(CLOSING)
