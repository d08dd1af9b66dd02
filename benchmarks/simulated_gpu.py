"""Calculates the modes for a pair of models on a machine of which only the times of each role alone
are known: the real programs on SGLang's scheduler, on the virtual clock.

    python -m benchmarks.simulated_gpu --times h200 --agreement .75 --alpha .6 --step-tokens 40 \
        --at-once 1,8
    python -m benchmarks.simulated_gpu --validate   # tables that were measured, calculated again
    python -m benchmarks.simulated_gpu --profile    # where the time of one point goes

Each mode stands with the best of the settings that are tried. Two GPUs of the same kind are as one
of them; what a scheduler does not do is not in it: memory, network, other clients.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from lr_sglang.sglang_api.light_import import leave_torch_out

leave_torch_out()

from lr_sglang.api.runner import keep_what_is_imported  # noqa: E402
from tests.simulated import measured_tables  # noqa: E402
from tests.simulated.runs import Made, Setting, answers, pair  # noqa: E402
from tests.simulated.scheduler import Flags  # noqa: E402
from tests.simulated.times import Times  # noqa: E402

PLAIN = Setting("autoregressive")
SD_TOKENS, FED_TOKENS, DEPTHS = (3, 6), (7, 15), (3, 6)


def ways(agreement: float) -> dict[str, list[Setting]]:
    """The settings that are tried of each way to answer."""
    standalone = {k: Flags("standalone", k, agreement) for k in SD_TOKENS}
    fed = [Flags("fed", k) for k in FED_TOKENS]
    return {
        "sd": [Setting("sd", layer) for layer in standalone.values()],
        "lookahead": [Setting("lookahead", depth=d, reading="never") for d in DEPTHS],
        "lookahead, reading": [Setting("lookahead", depth=6)],
        "lookahead+sd": [
            Setting("lookahead+sd", standalone[k], d, "never")
            for k, d in itertools.product(SD_TOKENS, DEPTHS)
        ],
        "lossless, reading": [Setting("lossless")],
        "lossless, fed": [Setting("lossless", layer) for layer in fed],
        "lookahead+sd, fed": [Setting("lookahead+sd", fed[0], 6, "never")],
        "auto": [Setting("auto")],
        "auto, sd's servers": [Setting("auto", standalone[SD_TOKENS[0]])],
        "auto, fed": [Setting("auto", fed[0])],
    }


@dataclass(frozen=True)
class Point:
    """A pair of models on a machine, and a number of answers at once."""

    times: Times
    agreement: float
    alpha: float
    step_tokens: int
    at_once: int
    steps: int = 10

    def best(self, settings: Sequence[Setting], count: int) -> tuple[Setting, Made]:
        """The fastest of some settings."""
        writer = pair(self.agreement, self.alpha, self.step_tokens, self.steps)
        made = [
            (one, answers(self.times, writer, one, self.at_once, count, seeded=False))
            for one in settings
        ]
        return max(made, key=lambda one: one[1].pace)


def named(setting: Setting) -> str:
    """What of a setting was chosen."""
    said = [f"{setting.layer.draft_tokens} tokens"] if setting.layer.layer else []
    said += [f"depth {setting.depth}"] if setting.mode.startswith("lookahead") else []
    return ", ".join(said)


def row(point: Point, only: Sequence[str], count: int) -> Iterator[tuple[str, str, Made, float]]:
    """Of each way its name, its best setting, its answers and the speed-up over plain decoding."""
    _, plain = point.best([PLAIN], count)
    yield "plain", "", plain, 1.0
    for name, settings in ways(point.agreement).items():
        if not only or name in only:
            setting, made = point.best(settings, count)
            yield name, named(setting), made, made.pace / plain.pace


def validate() -> None:
    """Prints the measured tables beside what is calculated for them."""
    inside = number = 0
    click.echo("| table | mode | at once | measured | calculated | |\n|-|-|-|-|-|-|")
    for one in measured_tables.calculated():
        number, inside = number + 1, inside + one.inside
        unit = " s" if one.row.plain_seconds else "x"
        said = f"{one.error:+.0%}" + (
            "" if one.inside else f": {one.row.cause or 'no cause known'}"
        )
        setting = one.row.setting
        name = setting.mode + (
            " with the layer" if setting.layer.layer and setting.mode == "lossless" else ""
        )
        click.echo(
            f"| {one.table.name} | {name} | {one.row.at_once} | {one.row.measured:.2f}{unit} | "
            f"{one.calculated:.2f}{unit} | {said} |"
        )
    click.echo(f"\n{inside} of {number} rows within {measured_tables.NEAR:.0%}")


def profile(point: Point, count: int) -> None:
    """Prints where the target's time of one point goes."""
    click.echo(
        "| | seconds | prefills a step | requests a step | passes a step | target in prefills "
        "| in passes | draft | judge |\n|" + "-|" * 9
    )
    lookahead = Setting("lookahead", reading="never")
    interval = dataclasses.replace(lookahead, flags=Flags(prefill_decode_interval=16))
    pairs = dataclasses.replace(point, times=point.times.with_prefills(0.5))
    free = dataclasses.replace(point, times=point.times.with_prefills(0.01))
    rows = {
        "plain": (point, PLAIN),
        "depth 6": (point, lookahead),
        "depth 3": (point, dataclasses.replace(lookahead, depth=3)),
        "16 passes between prefills": (point, interval),
        "prefills of half the time": (pairs, lookahead),
        "prefills of no time": (free, lookahead),
    }
    for name, (where, setting) in rows.items():
        _, made = where.best([setting], count)
        cells = [made.seconds, made.prefills, made.requests, made.passes, *made.busy.values()]
        click.echo(f"| {name} | " + " | ".join(f"{one:.2f}" for one in cells) + " |")


def _numbers(kind: Callable[[str], float | int]) -> Callable[..., list[float | int]]:
    def read(context: object, option: object, given: str) -> list[float | int]:
        try:
            return [kind(one) for one in given.split(",")]
        except ValueError as error:
            raise click.BadParameter(f"{given!r} is no list of numbers") from error

    return read


@click.command(help=__doc__.split("\n\n")[0] if __doc__ else None)
@click.option(
    "--times",
    "name",
    default="h200",
    show_default=True,
    help="A file of role_times, or a name in benchmarks/times.",
)
@click.option(
    "--agreement",
    default=".75",
    callback=_numbers(float),
    show_default=True,
    help="Of the draft's tokens: A[,A].",
)
@click.option(
    "--alpha",
    default=".6",
    callback=_numbers(float),
    show_default=True,
    help="Of the drafted steps, one for each agreement or for all.",
)
@click.option("--step-tokens", default=40, show_default=True, help="Mean tokens of a step.")
@click.option("--steps", default=10, show_default=True, help="Of an answer.")
@click.option(
    "--at-once",
    default="1,8",
    callback=_numbers(int),
    show_default=True,
    help="Answers at once: N[,N].",
)
@click.option(
    "--gpus",
    type=click.Choice(["one", "each", "both"]),
    default="one",
    show_default=True,
    help="One GPU for all servers, or one for each.",
)
@click.option(
    "--graphs", is_flag=True, help="Prefills are full CUDA graphs (the file's 'graph prefill')."
)
@click.option(
    "--only", multiple=True, help="One way to answer, as the table names it; several times."
)
@click.option(
    "--answers",
    "count",
    default=12,
    show_default=True,
    help="Of each setting; three times as many for several at once.",
)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON of every figure."
)
@click.option("--validate", "validates", is_flag=True, help="Calculate the measured tables again.")
@click.option("--profile", "profiles", is_flag=True, help="Where the time of each point goes.")
def main(
    name: str,
    agreement: list[float],
    alpha: list[float],
    step_tokens: int,
    steps: int,
    at_once: list[int],
    gpus: str,
    graphs: bool,
    only: tuple[str, ...],
    count: int,
    output: Path | None,
    validates: bool,
    profiles: bool,
) -> None:
    keep_what_is_imported()
    if validates:
        return validate()
    alphas = alpha * len(agreement) if len(alpha) == 1 else alpha
    if len(alphas) != len(agreement):
        raise click.UsageError("as many --alpha as --agreement, or one")
    found = []
    for shared, (agrees, accepted), many in itertools.product(
        {"one": [True], "each": [False], "both": [True, False]}[gpus],
        zip(agreement, alphas, strict=True),
        at_once,
    ):
        times = Times.load(name)
        times = times if shared else times.alone()
        if graphs:
            times = times.with_graphs()
        point = Point(times, agrees, accepted, step_tokens, many, steps)
        machine = "one GPU" if shared else "a GPU for each role"
        click.echo(
            f"\nagreement {agrees:g}, alpha {accepted:g}, {many} at once, {machine}: calculated"
        )
        if profiles:
            profile(point, count if many == 1 else 3 * count)
            continue
        began = time.monotonic()
        for way, setting, made, speedup in row(point, only, count if many == 1 else 3 * count):
            click.echo(
                f"  {way:22} {speedup:5.2f}x {made.pace:7.1f} tokens/s  {setting:20} "
                f"prefills a step {made.prefills:.2f}"
            )
            kept = {
                k: v for k, v in dataclasses.asdict(made).items() if k not in ("traces", "alpha")
            }
            found.append(
                {
                    "gpus": machine,
                    "graphs": graphs,
                    "agreement": agrees,
                    "alpha": accepted,
                    "at_once": many,
                    "way": way,
                    "setting": setting,
                    "speedup": speedup,
                    "accepted": made.alpha,
                    **kept,
                }
            )
            if output is not None:
                output.write_text(json.dumps(found, indent=1), "utf-8")
        click.echo(f"  ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
