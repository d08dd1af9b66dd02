"""``lr-sglang plan``: what speed-up to expect, and which depth gives the most."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from lr_sglang.cli import options, streams
from lr_sglang.cli.display import grid
from lr_sglang.cli.failures import warn
from lr_sglang.config import Schedule
from lr_sglang.errors import ConfigError, RecordError
from lr_sglang.results.collection import folders_in
from lr_sglang.results.store import each_record
from lr_sglang.theory import judged, paper, reading
from lr_sglang.theory.judged import Case, DepthChoice, best_depth
from lr_sglang.theory.measured import AnswerFigures, Measured, measure_mode

SCHEDULES: tuple[Schedule, ...] = ("async", "sync")
LAYERED = ("target", "draft")  # roles with a token layer


class LayerSpeed(click.ParamType):
    """A speed-up for target and draft, or of each: ``target=4.3,draft=2`` (1 where not given)."""

    name = "layer-speed"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, float]:
        parts = dict(part.rpartition("=")[::2] for part in str(value).split(","))
        if "" in parts:
            parts = dict.fromkeys(LAYERED, parts[""]) if len(parts) == 1 else parts
        if wrong := parts.keys() - LAYERED:
            self.fail(f"{min(wrong) or value!r}: give NUMBER, or target=NUMBER,draft=NUMBER")
        speed = options.Number(1, 100)
        return dict.fromkeys(LAYERED, 1.0) | {
            role: speed(number, param, ctx) for role, number in parts.items()
        }


@click.command()
@click.option(
    "--alpha", type=options.Number(0, 1), help="Share of drafted steps that are accepted."
)
@click.option(
    "--c1", type=options.Number(min=0), help="Time of a drafted step / time of a target step."
)
@click.option(
    "--judge",
    type=options.Number(min=0),
    help="Time of a verdict / time of a target step.  [default: 0]",
)
@click.option(
    "--records", type=options.ANY_PATH, metavar="DIR", help="Measure all that in a run's folder."
)
@click.option(
    "--layer-speed",
    type=LayerSpeed(),
    metavar="NUMBER",
    default="1",
    help="Speed-up that the token layer gives target and draft; of each: target=4.3,draft=2.",
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
      lr-sglang plan --alpha 0.63 --c1 0.1 --judge 0.05 --layer-speed target=4.3,draft=2
      lr-sglang plan --records runs/demo_20261121_214821
    """
    measured = _measured(records) if records is not None else None
    found = _forecast(_case(given, measured), given, measured)
    if json:
        streams.write_json(found, default=vars)  # null stands for infinity
        return
    out = Console(highlight=False)
    for line in _lines(found):
        out.print(Text(line) if isinstance(line, str) else line, soft_wrap=isinstance(line, str))


def _measured(run: Path) -> Measured:
    """The inputs of the formulas, of the first mode with lookahead in a run's folder or file, or in
    that of a benchmark of one setting.

    Raises:
        RecordError: the records cannot be read, or lack a field.
        ConfigError: there are several settings.
    """
    found = folders_in(run)
    if len(found) > 1:
        raise ConfigError(f"{run} has several runs", hint=f"give one: {', '.join(map(str, found))}")
    answers = list[AnswerFigures]()
    lacking = list[str]()
    for record in each_record(found[0], warn):
        try:
            answers.append(AnswerFigures.of(record))
        except (KeyError, TypeError) as error:
            lacking.append(str(error))
    if lacking and not answers:
        why = f"{run}: a record lacks {lacking[0]}"
        raise RecordError(why, hint="take a run of this release")
    if lacking:
        warn(f"{run}: {len(lacking)} records are left out: one lacks {lacking[0]}")
    return measure_mode(answers)


def _case(given: dict[str, Any], measured: Measured | None) -> Case:
    """The case to compute: each figure is the given one, else the measured one, else the
    default.
    """
    known: dict[str, Any] = {"alpha": None, "c1": None, "judge": 0.0}
    if measured is not None:
        known = {
            "alpha": measured.alpha,
            "c1": measured.c1,
            "judge": measured.judge,
            "slowdown": measured.slowdown or 1.0,
            "steps": measured.steps if measured.steps <= judged.MAX_STEPS else None,
        }
    known |= {n: given[n] for n in ("alpha", "c1", "judge") if given[n] is not None}
    if missing := [f"--{name}" for name in ("alpha", "c1") if known[name] is None]:
        raise click.UsageError(f"give {' and '.join(missing)}, or --records of a run to measure")
    # Beside a faster target step a verdict, and a draft whose layer is slower, take more of it.
    faster = given["layer_speed"]
    known["judge"] *= faster["target"]
    known["c1"] *= faster["target"] / faster["draft"]
    return Case(**known)


def _forecast(case: Case, given: dict[str, Any], measured: Measured | None) -> dict[str, Any]:
    """All figures of a plan. In a row, ``steps_at_once`` are parallel target steps in async, and
    ``formula`` is the case of its speed-up, S1 or S2.
    """
    width = measured.width if measured else 1
    # the tree of several versions may be refused at a greater depth than the run had
    deepest = min(given["depth"], measured.depth) if measured and width > 1 else given["depth"]
    best = {s: best_depth(case, s, deepest) for s in SCHEDULES}
    layered = max(given["layer_speed"].values()) > 1
    return {
        "case": case,
        "layer_speed": given["layer_speed"],
        "measured": measured,
        "rows": [
            {
                "depth": depth,
                "speedup": {s: case.speedup(s, depth) for s in SCHEDULES},
                "steps_at_once": paper.parallel("async", case.c1, depth),
                "formula": "S1" if paper.draft_limited(case.c1 / (1 + case.judge), depth) else "S2",
            }
            for depth in range(1, deepest + 1)
        ],
        "bound": paper.bound(case.alpha),
        "useful": judged.deepest_useful(case.c1, case.judge),
        "best": best,
        "expected_of_the_run": measured and case.speedup(measured.schedule, measured.depth),
        "run": _arguments(_fastest(best), width, layered=layered),
    }


def _fastest(best: dict[Schedule, DepthChoice]) -> DepthChoice:
    return max(best.values(), key=lambda one: one.speedup)


def _arguments(chosen: DepthChoice, width: int, layered: bool) -> str:
    """The plan, for ``lr-sglang run``."""
    if not chosen.depth:
        return f"--mode {'sd' if layered else 'autoregressive'}"
    more = f" -o lookahead.width={width}" if width > 1 else ""
    mode = "lookahead+sd" if layered else "lookahead"
    return f"--mode {mode} --schedule {chosen.schedule} --depth {chosen.depth}{more}"


def _lines(found: dict[str, Any]) -> Iterator[str | Text | Padding]:
    """A plan for people."""
    case = found["case"]
    measured = found["measured"]
    best = found["best"]
    step = f"a target step of {measured.step_seconds:.3g} s" if measured else "a target step"
    more = f", slow-down {case.slowdown:.2f}" if case.slowdown != 1 else ""
    more += f", {case.steps} steps an answer" if case.steps else ""
    yield f"alpha {case.alpha:.2f}, c1 {case.c1:.2f}, judge {case.judge:.2f} of {step}{more}"
    if measured is not None:
        yield (
            f"measured where not given: {measured.samples} samples, {measured.judged} judged steps"
        )
    yield Padding(_depths(found), (1, 0))
    for schedule, choice in best.items():
        what = f"depth {choice.depth}, {choice.speedup:.2f}x" if choice.depth else "none gains"
        yield f"best {schedule}: {what}{_rule(found, choice)}"
    ceiling = "any" if math.isinf(found["bound"]) else f"{found['bound']:.2f}x"
    yield f"bound 1/(1 - alpha): {ceiling}; the paper's, for a draft and a judge that cost nothing"
    if math.isinf(found["useful"]):
        yield "async: the target's width is the limit at every depth (S2)"
    else:
        deep = int(found["useful"])
        yield f"async: S2 below depth {deep} (the target's width is the limit), S1 from there on"
    if measured is not None:
        said = f"no speed-up measured, for it has no {measured.base} sample"
        if measured.speedup is not None:
            said = f"{measured.speedup:.2f}x measured"
        of = f"that run ({measured.mode}, {measured.schedule}, depth {measured.depth})"
        yield f"{of}: {said}; {found['expected_of_the_run']:.2f}x expected"
        if (agreement := measured.agreement) is not None:
            tokens = reading.portion_size(agreement)
            yield (
                "its target read the drafts before it wrote, which these formulas leave out: "
                f"{agreement:.2f} of the tokens were its own; lossless by reading: "
                f"{reading.reading_speedup(agreement, tokens):.2f}x, {tokens} tokens at a time"
            )
    yield Text(f"\nplan: lr-sglang run {found['run']}", style="bold green")
    speed = _fastest(best).speedup
    layer = found["layer_speed"]["target"]
    over = f" over the token layer alone, {speed * layer:.2f}x over plain decoding"
    yield f"{speed:.2f}x" + (over if layer > 1 else "")


def _rule(found: dict[str, Any], chosen: DepthChoice) -> str:
    """Why another depth than the fastest of the table is called the best; empty if it is none."""
    speeds = {row["depth"]: row["speedup"][chosen.schedule] for row in found["rows"]}
    depth = max(speeds, key=lambda one: speeds[one])
    if f"{max(1.0, speeds[depth]):.2f}" == f"{chosen.speedup:.2f}":
        return ""
    return (
        f": the least depth within {judged.TOLERATED_LOSS:.0%} of the fastest, "
        f"{speeds[depth]:.2f}x at depth {depth}"
    )


def _depths(found: dict[str, Any]) -> Any:
    rows = []
    best = found["best"]
    # deeper ones gain nothing in async, and lose in sync
    deepest = max(found["useful"], *(choice.depth + 1 for choice in best.values()))
    for row in found["rows"]:
        if row["depth"] <= deepest:
            speeds = (
                Text(
                    f"{row['speedup'][s]:.2f}x",
                    style="bold green" if best[s].depth == row["depth"] else "",
                )
                for s in SCHEDULES
            )
            rows.append([row["depth"], *speeds, row["steps_at_once"], row["formula"]])
    return grid(("depth", *SCHEDULES, "steps at once", "formula"), rows, apart=3)
