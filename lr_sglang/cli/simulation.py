"""Options of a simulation, which ``bench simulated`` and ``simulate`` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lr_sglang.cli.options import Several, together
from lr_sglang.errors import ConfigError

if TYPE_CHECKING:
    from lr_sglang.simulated.simulation import Simulation


simulation = together(
    click.option(
        "--alpha",
        type=Several(click.FLOAT, "SHARE[,SHARE]"),
        default="0.63",
        help="Drafted steps that agree; or by position.",
    ),
    click.option("--trace", type=click.Path(path_type=Path), metavar="DIR", help="Which agree, from a run's records."),
    click.option("--c1", type=float, default=0.1, help="Time of a drafted step / of a target step."),
    click.option("--step-seconds", type=float, default=0.2, help="Of a target step alone."),
    click.option("--judge-seconds", type=float, default=0.04, help="Of a verdict."),
    click.option("--steps", type=int, default=300, help="Of an answer."),
    click.option("--step-tokens", type=int, default=24, help="Of a step, on average."),
    click.option("--spread", type=float, default=0.0, help="Of steps' lengths: standard deviation / mean."),
    click.option("--same-words", is_flag=True, help="Drafts that agree are the very same: no judge is needed."),
    click.option("--batch-slowdown", type=float, default=0.0, help="What each further request costs others."),
    click.option(
        "--prefill", type=float, default=0.05, help="Time of a drafted step that is only weighed / of writing it."
    ),
    click.option(
        "--auc", type=float, default=0.5, help="How well a draft's confidence tells what agrees: 0.5 is not at all."
    ),
    click.option("--slots", type=int, help="Requests that a runtime serves at a time.  [default: any number]"),
    click.option("--width", type=int, default=1, help="Drafted alternatives per step."),
    click.option("--seed", type=int, default=0, help="Of everything that is drawn."),
)


def simulation_of(given: dict[str, Any]) -> Simulation:
    """What the options say.

    Raises:
        ConfigError: a value that cannot be.
        RecordError: there are no records to trace.
    """
    from lr_sglang.simulated.model import Model
    from lr_sglang.simulated.simulation import Simulation

    model = Model(
        alpha=given["alpha"],
        trace=traced(given["trace"]) if given["trace"] else (),
        steps=given["steps"],
        tokens=given["step_tokens"],
        spread=given["spread"],
        own_words=not given["same_words"],
        auc=given["auc"],
        width=given["width"],
        seed=given["seed"],
    )
    return Simulation(
        model,
        given["step_seconds"],
        given["c1"],
        given["judge_seconds"],
        given["batch_slowdown"],
        given["slots"],
        given["prefill"],
    )


def traced(folder: Path) -> tuple[tuple[bool, ...], ...]:
    """Which drafts were accepted in a run, by answer and position.

    Raises:
        RecordError: there is no such run.
        ConfigError: it did not look ahead.
    """
    from lr_sglang.cli import runs

    with runs.complete(folder):
        rows = [tuple(step["source"] == "draft" for step in r["steps"]) for r in runs.read(folder) if r["judged"]]
    if not rows:
        raise ConfigError(f"{folder} has no answer that looked ahead", hint="give a run of mode lookahead")
    return tuple(rows)
