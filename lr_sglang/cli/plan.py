"""``lr-sglang plan``: what speed-up to expect, and which depth and token layer give the most."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lr_sglang.cli import options
from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES

if TYPE_CHECKING:
    from lr_sglang.theory.measured import Measured
    from lr_sglang.theory.planner import Case


AHEAD = [name for name, mode in MODES.items() if mode.ahead]


@click.command()
@click.option("--alpha", type=float, help="Share of drafted steps that are accepted.")
@click.option("--c1", type=float, help="Time of a drafted step / time of a target step.")
@click.option(
    "--judge",
    type=click.FloatRange(min=0),
    help="Time of a verdict / time of a target step.  [default: 0]",
)
@click.option(
    "--records", type=options.ANY_PATH, metavar="DIR", help="Measure all that in a run's folder."
)
@click.option(
    "--mode",
    type=click.Choice(AHEAD),
    help="Of the run's modes, which.  [default: the first there is]",
)
@click.option(
    "--layer-speed",
    type=click.FloatRange(1, 100),
    default=1.0,
    help="Speed-up that the token layer gives target and draft.",
)
@click.option("--depth", type=click.IntRange(1, 64), default=16, help="Deepest to look at.")
@options.as_json
def plan(records: Path | None, json: bool, **given: Any) -> None:
    """Says what speed-up to expect, and which depth is best.

    Give --alpha and --c1, or --records of a run that has them (what is given beside it goes before
    what it measured). With --layer-speed the speed-ups are over that token layer alone.

    \b
    Examples:
      lr-sglang plan --alpha 0.63 --c1 0.1 --judge 0.05
      lr-sglang plan --alpha 0.63 --c1 0.1 --judge 0.05 --layer-speed 1.5
      lr-sglang plan --records runs/demo_20261121_214821
    """
    from lr_sglang.cli import forecast
    from lr_sglang.cli.runs import complete, read
    from lr_sglang.theory.measured import Answer, measure

    if records is None and given["mode"]:
        raise click.UsageError("--mode is of the run in --records")
    measured = None
    if records is not None:
        with complete(records):
            measured = measure(map(Answer.of, read(records)), given["mode"])
    case, layer_speed = _case(given, measured), given["layer_speed"]
    found = forecast.Forecast(case, _deepest(case, given["depth"]), measured, layer_speed)
    if json:
        text = json_format.dumps(found, default=vars)
        # JSON has no infinity: null stands for it.
        plain = json_format.loads(text, parse_constant=lambda _: None)
        click.echo(json_format.dumps(plain, ensure_ascii=False))
    else:
        forecast.show(found)


def _case(given: dict[str, Any], measured: Measured | None) -> Case:
    """The case to compute: each figure is the given one, else the measured one, else the
    default.
    """
    from lr_sglang.theory.judged import MAX_STEPS, one_of
    from lr_sglang.theory.planner import Case

    known: dict[str, Any] = {"alpha": None, "c1": None, "judge": 0.0}
    if measured is not None:
        known = {
            "alpha": one_of(measured.alpha, measured.width),
            "c1": measured.c1,
            "judge": measured.judge,
            "slowdown": measured.slowdown or 1.0,
            "width": measured.width,
            "steps": measured.steps if measured.steps <= MAX_STEPS else None,
        }
    known |= {n: given[n] for n in ("alpha", "c1", "judge") if given[n] is not None}
    if missing := [f"--{name}" for name in ("alpha", "c1") if known[name] is None]:
        raise click.UsageError(f"give {' and '.join(missing)}, or --records of a run to measure")
    # The token layer does not speed up the judge, whose verdict then takes more of a step.
    known["judge"] *= given["layer_speed"]
    return Case(**known)


def _deepest(case: Case, max_depth: int) -> int:
    """The largest depth up to ``max_depth`` whose tree ``Lookahead`` allows."""
    from lr_sglang.config import Lookahead

    for depth in range(1, max_depth + 1):
        try:
            Lookahead(depth=depth, width=case.width)
        except ConfigError:
            if depth == 1:
                raise
            return depth - 1
    return max_depth
