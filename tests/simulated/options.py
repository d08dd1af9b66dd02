"""Command-line options that describe a simulation."""

from collections.abc import Callable
from typing import Any

import click

from tests.simulated.model import Model, Simulation

_OPTIONS = (
    click.option("--alpha", default="0.63", help="Drafted steps that agree, by position: A[,A]."),
    click.option("--c1", default=0.1, help="Time of a drafted step / of a target step."),
    click.option("--step-seconds", default=0.2, help="Of a target step alone."),
    click.option("--judge-seconds", default=0.04, help="Of a verdict."),
    click.option("--steps", default=300, help="Of an answer."),
    click.option("--step-tokens", default=24, help="Of a step, on average."),
    click.option("--spread", default=0.0, help="Of steps' lengths: standard deviation / mean."),
    click.option("--same-words", is_flag=True, help="Drafts that agree are the very same."),
    click.option("--batch-slowdown", default=0.0, help="What each further request costs others."),
    click.option("--prefill", default=0.05, help="Time to score a drafted step / to write it."),
    click.option("--auc", default=0.5, help="How well a draft's confidence tells what agrees."),
    click.option("--slots", type=int, help="Requests that a runtime serves at a time."),
    click.option("--width", default=1, help="Drafted alternatives per step."),
    click.option("--seed", default=0, help="Of everything that is drawn."),
)


def simulation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options of ``simulation``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def simulation(
    *, alpha: str, step_tokens: int, same_words: bool, batch_slowdown: float, **given: Any
) -> Simulation:
    """The simulation that the options describe."""
    model = Model(
        alpha=tuple(float(share) for share in alpha.split(",")),
        tokens=step_tokens,
        own_words=not same_words,
        **{name: given.pop(name) for name in ("steps", "spread", "auc", "width", "seed")},
    )
    return Simulation(model, slowdown=batch_slowdown, **given)
