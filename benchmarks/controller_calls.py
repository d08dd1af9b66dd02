"""Counts what a request of the controller costs, in calls of Python functions and built-ins: the same in every run.

python benchmarks/controller_calls.py            # 16 answers of 60 steps at once on the virtual clock
python benchmarks/controller_calls.py --policy adaptive
"""

from __future__ import annotations

import cProfile
import pstats
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from lr_sglang.config import Lookahead
from lr_sglang.simulated.model import Model, Writer
from lr_sglang.simulated.simulation import Simulation
from lr_sglang.simulated.virtual import answer_all, numbers, questions

SHOWN = 25  # modules


def where(function: tuple[str, int, str]) -> str:
    """The module of a function; empty for a built-in one."""
    for root in ("lr_sglang/", "programs/", "site-packages/", "/asyncio/"):
        if root in function[0]:
            return function[0].rpartition(root)[2]
    return "" if function[0] == "~" else function[0]


@click.command()
@click.option("--questions", "count", default=16, show_default=True)
@click.option("--steps", default=60, show_default=True)
@click.option("--policy", default="fixed", type=click.Choice(["fixed", "adaptive"]), show_default=True)
def main(count: int, steps: int, policy: Any) -> None:
    """Prints the calls of a request, in all and by module; those of built-ins count for the module that makes them."""
    simulation = Simulation(Model((0.62,), steps=steps), step_seconds=0.2, c1=0.1, judge_seconds=0.0)
    writer, asked, look = Writer(simulation.model), questions(count), Lookahead(depth=6, policy=policy)
    writer.prepare(numbers(writer, asked))
    answer_all(simulation, look, asked[:2], writer)  # what is imported or cached once
    profile = cProfile.Profile()
    with ThreadPoolExecutor(1) as thread:  # in the main one asyncio.Runner would look after signals
        traces = thread.submit(profile.runcall, answer_all, simulation, look, asked, writer).result()
    requests, calls = sum(len(trace.branches) for trace in traces), Counter[str]()
    for function, (_, number, _, _, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if name := where(function):
            calls[name] += number
        for caller, (_, times, _, _) in () if name else callers.items():
            calls[where(caller) or "built-ins"] += times
    click.echo(f"{requests} requests, {calls.total() / requests:.1f} calls each")
    for name, number in calls.most_common(SHOWN):
        click.echo(f"{number / requests:7.1f}  {name}")


if __name__ == "__main__":
    main()
