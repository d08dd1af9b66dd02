"""``lr-sglang plan``: what speed-up to expect, and which depth and token layer give the most."""

from __future__ import annotations

import json as json_format
import math
import re
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
# By unit: its size, and whether that is in seconds (else in target steps).
UNITS = {"": (1.0, False), "%": (0.01, False), "s": (1.0, True), "ms": (0.001, True)}


class Latency(click.ParamType):
    """A time: ``0.1`` and ``10%`` are parts of a target step, ``80ms`` and ``0.08s`` are seconds
    (then with True).
    """

    name = "part|time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, bool]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(%|ms|s|)", str(value).strip())
        if found is None:
            self.fail(
                f"{value!r}: give a part of a target step (0.1 or 10%) or a time (80ms or 0.08s)",
                param,
                ctx,
            )
        unit, seconds = UNITS[found[2]]
        return float(found[1]) * unit, seconds


@click.command()
@click.option("--alpha", type=float, help="Share of drafted steps that are accepted.")
@click.option("--c1", type=float, help="Time of a drafted step / time of a target step.")
@click.option(
    "--judge",
    type=Latency(),
    help="Time of a verdict: 0.1 or 10% of a target step, or 80ms.  [default: 0]",
)
@click.option(
    "--step-time",
    type=float,
    metavar="SECONDS",
    help="Time of a target step, if --judge is in seconds.",
)
@click.option(
    "--slowdown",
    type=float,
    help="Time of a target step among its parallel branches / of one alone.  [default: 1]",
)
@click.option("--steps", type=int, help="Steps of an answer, if it is short.  [default: many]")
@click.option(
    "--width", type=int, help="Drafted alternatives per step, taken as independent.  [default: 1]"
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
      lr-sglang plan --alpha 0.63 --c1 0.1 --judge 5%
      lr-sglang plan --alpha 0.63 --c1 0.1 --judge 80ms --step-time 1.5 --layer-speed 1.5
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
    case, step_seconds = _case(given, measured), _step_seconds(given, measured)
    deepest, layer_speed = _deepest(case, given["depth"]), given["layer_speed"]
    found = forecast.Forecast(case, deepest, measured, step_seconds, layer_speed)
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

    known: dict[str, Any] = {"alpha": None, "c1": None, "width": 1, "slowdown": 1.0, "steps": None}
    if measured is not None:
        known |= {
            "alpha": one_of(measured.alpha, measured.width),
            "c1": measured.c1,
            "width": measured.width,
        }
        known["slowdown"] = 1.0 if measured.slowdown is None else measured.slowdown
        known["steps"] = measured.steps if measured.steps <= MAX_STEPS else None
    known |= {name: given[name] for name in known if given[name] is not None}
    if missing := [f"--{name}" for name in ("alpha", "c1") if known[name] is None]:
        raise click.UsageError(f"give {' and '.join(missing)}, or --records of a run to measure")
    # The token layer does not speed up the judge, whose verdict then takes more of a step.
    return Case(judge=_judge(given, measured) * given["layer_speed"], **known)


def _step_seconds(given: dict[str, Any], measured: Measured | None) -> float | None:
    """The seconds of a target step; None if not known."""
    seconds: float | None = given["step_time"]
    if seconds is not None and not 0 < seconds < math.inf:
        raise ConfigError(f"step_time: {seconds:g} is not possible; it must be more than 0 seconds")
    return seconds or (measured.step_seconds if measured is not None else None)


def _judge(given: dict[str, Any], measured: Measured | None) -> float:
    """The time of a verdict in target steps."""
    step = _step_seconds(given, measured)
    if given["judge"] is None:
        return measured.judge if measured is not None else 0.0
    value, in_seconds = given["judge"]
    if in_seconds and step is None:
        raise click.UsageError("--judge in seconds needs --step-time, or --records that tell it")
    return float(value / step if in_seconds else value)


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
