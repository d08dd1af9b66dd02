"""``lr-sglang bench``: modes and settings side by side, and measurements of this project itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lr_sglang.bench import fair, paper
from lr_sglang.cli import grading_options, options
from lr_sglang.cli.bench_simulated import simulated
from lr_sglang.modes import MODES


class Modes(click.Choice[str]):
    """``all``, or modes with commas between them."""

    def __init__(self) -> None:
        super().__init__(["all", *MODES])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        parts = [super(Modes, self).convert(part.strip(), param, ctx) for part in str(value).split(",")]
        return tuple(MODES) if "all" in parts else tuple(dict.fromkeys(parts))


@click.group(invoke_without_command=True, subcommand_metavar="[simulated ...]")
@click.option("--task", multiple=True, metavar="NAME", help="Again for more.  [default: pocket]")
@click.option("--input", type=click.Path(path_type=Path), metavar="FILE", help="JSONL with 'question' and 'answer'.")
@click.option(
    "--modes",
    type=Modes(),
    metavar="MODE,MODE",
    help="all, or some of them; lossless is made beside autoregressive at temperature 0.  [default: all]",
)
@options.chosen
@click.option("--samples", type=click.IntRange(min=1), help="Answers per question and mode.  [default: 1]")
@click.option(
    "--concurrency",
    type=options.Several(click.IntRange(min=1), "N,N"),
    help="Answers at a time, one number or several.  [default: 1]",
)
@click.option(
    "--sweep",
    multiple=True,
    metavar="NAME=VALUES",
    help="depth=1..8, width=1,2, verifier=exact,judge, alpha=0.4,0.8, concurrency=1,2,4, sd-tokens=0..16, "
    "budget=4,8,16, option=none,gate:0.075; again to multiply.",
)
@click.option("--paper", type=click.Choice(list(paper.PRESETS)), help="The paper's setting: tasks, samples, lengths.")
@click.option("--fair", type=click.Choice(fair.WAYS), help="Modes without lookahead get all its GPUs.")
@click.option(
    "--servers",
    type=click.Choice(["auto", "together", "blocks"]),
    default="auto",
    help="Where modes need different ones: up together, or in turns.",
)
@click.option("--dummy-weights", is_flag=True, help="Real servers and shapes, random weights, verdicts by --alpha.")
@click.option("--alpha", metavar="SHARE,SHARE", help="With --dummy-weights: steps to accept.  [default: 0.63]")
@click.option("--shapes", metavar="T,D,J", help="Of target, draft and judge.  [default: the 32B pair, on a CPU pocket]")
@click.option("--flag", multiple=True, metavar="NAME[=VALUE]", help="Of SGLang, for every server that is started.")
@click.option("--print", is_flag=True, help="Print the plan, and start nothing.")
@grading_options.options
@options.program
@options.method
@options.token_layer
@options.sampling
@options.runtimes
@click.option("--name", help="Of the benchmark, for its folder.  [default: bench]")
@options.resume
@options.output
@click.pass_context
def bench(ctx: click.Context, /, **given: Any) -> None:
    """Measures modes side by side on the same questions, and leaves a record of each answer.

    With no other options the pocket models answer the pocket task in every mode. Modes that share servers take turns
    question by question; caches are emptied between them. Tables and plots are made by report, a page by view.

    \b
    Examples:
      lr-sglang bench --task pocket --modes all --samples 2 --limit 25
      lr-sglang bench --sweep depth=1..8 --modes autoregressive,lookahead
      lr-sglang bench --sweep sd-tokens=0..16 --modes sd,lookahead+sd --limit 10
      lr-sglang bench --paper table1 --deployment qwen3-4gpu --print
      lr-sglang bench --dummy-weights --alpha 0.4,0.63,0.8 --sweep depth=1..8
      lr-sglang bench simulated --alpha 0.63 --c1 0.1
    """
    if ctx.invoked_subcommand is not None:
        return
    from lr_sglang.cli.bench_work import run

    run(given)


bench.add_command(simulated)
