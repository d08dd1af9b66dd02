"""``lr-sglang demo``: both modes side by side on the pocket models."""

from __future__ import annotations

from pathlib import Path

import click

from lr_sglang.cli import options

MODES = ("autoregressive", "lookahead")


@click.command()
@click.option(
    "--questions", type=click.IntRange(1, 190), default=10, show_default=True, help="Held-out problems to answer."
)
@click.option("--temperature", type=float, help="0 is greedy.  [default: the pocket deployment's]")
@click.option("--seed", type=int, help="Of the run.  [default: 0]")
@options.output
def demo(
    questions: int, temperature: float | None, seed: int | None, output: Path | None, as_json: bool, quiet: bool
) -> None:
    """Answers a few problems in both modes and compares them.

    Three SGLang servers are started on this machine's CPU, with the pocket models that come with the package: small
    enough for any machine, and real enough to show the method at work.

    \b
    Examples:
      lr-sglang demo
      lr-sglang demo --questions 4 --temperature 0
    """
    from lr_sglang import tasks
    from lr_sglang.cli import work
    from lr_sglang.cli.display import Display
    from lr_sglang.cli.settings import settle
    from lr_sglang.results.store import new_folder
    from lr_sglang.tasks.plan import plan

    display = Display(as_json=as_json, quiet=quiet)
    held_out = tasks.load("pocket")
    chosen, spare = held_out[:questions], held_out[-1:]
    order = work.Order(
        settle({"temperature": temperature, "seed": seed}),
        chosen,
        MODES,
        {"questions": "pocket", "prompt_suffix": ""},
        warm_up=plan(spare, MODES),
    )
    display.note(f"{len(chosen)} problems, each answered in both modes by three SGLang servers on this machine")
    with work.open_store(output or new_folder(Path("runs"), "demo"), order) as store:
        work.carry_out(order, store, display)
    display.note("The pocket models are a demonstration: they show that and how it works, not what large models gain.")
