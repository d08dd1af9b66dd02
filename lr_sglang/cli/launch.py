"""``lr-sglang launch``: a deployment, brought up and kept up until a signal ends it."""

from __future__ import annotations

from typing import Any

import click

from lr_sglang.cli import options
from lr_sglang.modes import MODES


@click.command()
@click.argument("deployment", required=False)
@click.option("--list", is_flag=True, help="Say which deployments are built in, and which are up.")
@click.option("--print", is_flag=True, help="Print the servers' exact commands, and start nothing.")
@click.option(
    "--prime",
    is_flag=True,
    help="Start, answer a greedy and a sampled request, say which compile caches were filled, and stop.",
)
@click.option(
    "--mode",
    type=click.Choice(list(MODES)),
    multiple=True,
    help="What it shall serve, again for more: sd and lookahead+sd need the token layer, the others none of it.  "
    "[default: lookahead, or lookahead+sd with a token layer]",
)
@click.option(
    "--with-token-layer",
    is_flag=True,
    help="The same as --mode sd --mode lookahead+sd: servers with their token layer.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=8,
    help="Answers at a time to have room for, as serve --concurrency.",
)
@click.option("--name", help="To attach by.  [default: the deployment's]")
@options.keeping
@options.roles
@options.token_layer
@options.method
@options.as_json
@options.quiet
def launch(**given: Any) -> None:
    """Brings a DEPLOYMENT up and keeps it up: a built-in name (--list) or a TOML file.  [default: pocket]

    Roles whose file names no GPUs are placed on those that there are. A server that ends is started again on its port,
    with longer and longer pauses. Ctrl-C or SIGTERM stops all of them; the exit status is then 0 if they were up, and 1
    if the target could not be kept up.

    \b
    Examples:
      lr-sglang launch
      lr-sglang launch qwen3-4gpu
      lr-sglang launch qwen3-2gpu --with-token-layer --concurrency 4 --name fast
      lr-sglang launch deepseek-1gpu --print
      lr-sglang launch pocket --prime
      lr-sglang launch --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --judge target
      lr-sglang run --attach qwen3-4gpu "How many primes are below 60?"
    """
    from lr_sglang.cli import launch_work
    from lr_sglang.cli.display import Display
    from lr_sglang.cli.settings import sampling_of_file, settle

    display = Display(as_json=given["json"], quiet=given["quiet"])
    if given["list"]:
        launch_work.show_list(display)
        return
    if given["with_token_layer"]:
        given["mode"] = (*given["mode"], *(mode for mode in ("sd", "lookahead+sd") if mode not in given["mode"]))
    plan = settle(given).checked()
    order = launch_work.order(plan, list(plan.modes), sampling_of_file(given), given)
    if given["print"]:
        launch_work.show_commands(order, display)
    elif given["prime"]:
        launch_work.prime(order, plan.sampling.drawn(), display)
    else:
        launch_work.keep(order, display)
