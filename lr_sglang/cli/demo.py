"""``lr-sglang demo``: modes side by side on the pocket models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
from rich.text import Text

from lr_sglang import tasks
from lr_sglang.bench import order
from lr_sglang.bench.execution import Execution
from lr_sglang.cli import options, source
from lr_sglang.cli.display import Display, count
from lr_sglang.cli.report import tell
from lr_sglang.cli.settings import settle
from lr_sglang.cli.source import need_an_answer
from lr_sglang.modes import MODES
from lr_sglang.results.record import Brief

SMALL_MODES = ("autoregressive", "lookahead")
CLOSING = """\
The pocket models are a demonstration: they know one kind of problem. In the larger
body the target's words are theirs, and its cost is that of 199 million parameters."""


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
        SMALL_MODES
        if small
        else tuple(name for name, mode in MODES.items() if mode.token_layer is not None)
    )
    held_out = tasks.load("pocket")
    chosen = held_out[: questions or (10 if small else 4)]
    spare = held_out[-1].question
    plan = settle(
        {**given, "deployment": "pocket" if small else "pocket-body", "mode": modes}
    ).checked()
    made = order.side_by_side(plan, "pocket", "", order.samples_of(chosen, 1))
    display = Display(as_json=given["json"], quiet=given["quiet"], answers=True)
    display.note(
        f"{len(chosen)} problems, each answered in {len(modes)} modes by SGLang servers on "
        "this machine"
    )
    folder = source.folder_for("demo", given)
    records = Execution(folder, made, display, warm_up=spare).run()
    if not given["json"]:
        for line in demo_summary(records, modes):
            display.out.print(Text(line, style="bold"), soft_wrap=True)
    tell(folder, display)
    need_an_answer(records)
    display.note(CLOSING)


def demo_summary(records: Sequence[Brief], modes: Sequence[str]) -> Iterator[str]:
    """What is read first: the seconds of each mode, how many were right, and which was fastest."""
    seconds = dict[str, float]()
    right = list[str]()
    for mode in modes:
        mine = [record for record in records if record["mode"] == mode]
        ended = [record for record in mine if not record["error"]]
        if len(ended) == len(mine):
            seconds[mode] = sum(record["seconds"] for record in mine)
        right.append(f"{mode} {sum(record['correct'] is True for record in ended)}")
    each = len(records) // len(modes)
    took = [f"{mode} {taken:.1f} s" for mode, taken in seconds.items()]
    yield f"{count(each, 'problem')}: {', '.join(took) or 'no mode has answered all'}"
    yield f"right of {each}: {', '.join(right)}"
    plain = seconds.get(modes[0])
    fastest = min(seconds, key=seconds.__getitem__, default="")
    if plain and fastest != modes[0]:
        yield f"fastest: {fastest}, {plain / seconds[fastest]:.2f}x as fast as {modes[0]}"
    else:
        yield f"fastest: {fastest or 'unknown'}"
