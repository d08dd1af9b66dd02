"""Calculates the modes for a pair of models on a machine of which only the times of each role alone
are known: the real programs on SGLang's scheduler, on the virtual clock.

    python -m benchmarks.simulated_gpu --times h200 --agreement .75 --alpha .6 --step-tokens 40 \
        --at-once 1,8
    python -m benchmarks.simulated_gpu --auto       # `auto` over the best mode of its servers
    python -m benchmarks.simulated_gpu --profile    # where the time of one point goes
    python -m benchmarks.simulated_gpu --validate   # tables that were measured, calculated again

Each mode stands with the best of the settings that are tried. Two GPUs of the same kind are as one
of them; what a scheduler does not do is not in it: memory, network, other clients.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import harmonic_mean

import click

from lr_sglang.sglang_api.light_import import leave_torch_out

leave_torch_out()

from lr_sglang.api.runner import keep_what_is_imported  # noqa: E402
from tests.simulated import measured_tables  # noqa: E402
from tests.simulated.measured_tables import PLAIN  # noqa: E402
from tests.simulated.runs import Made, Setting, answers, pair  # noqa: E402
from tests.simulated.scheduler import Flags  # noqa: E402
from tests.simulated.times import Times  # noqa: E402

SD_TOKENS = 3, 6
FED_TOKENS = 7, 15
DEPTHS = 3, 6


@dataclass(frozen=True)
class Point:
    """A pair of models on a machine, and a number of answers at once.

    Attributes:
        ngrams: share of SGLang's own guesses that are right, which a fed target verifies where
            nothing was delivered.
    """

    times: Times
    agreement: float
    alpha: float
    step_tokens: int
    at_once: int
    steps: int = 10
    seed: int = 0
    ngrams: float = 0.0

    def best(self, settings: Sequence[Setting], count: int, first: int = 0) -> tuple[Setting, Made]:
        """The fastest of some settings; ``first`` as of ``answers``."""
        made = [(one, self.made(one, count, first)) for one in settings]
        return max(made, key=lambda one: one[1].pace)

    def made(self, setting: Setting, count: int, first: int = 0) -> Made:
        """The answers of one setting."""
        writer = pair(self.agreement, self.alpha, self.step_tokens, self.steps, seed=self.seed)
        return answers(self.times, writer, setting, self.at_once, count, first=first, seeded=False)


def ways(point: Point) -> dict[str, list[Setting]]:
    """The settings that are tried of each way to answer."""
    standalone = {k: Flags("standalone", k, point.agreement) for k in SD_TOKENS}
    fed = [Flags("fed", k, point.ngrams) for k in FED_TOKENS]
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


def servers(point: Point) -> dict[str, tuple[Setting, list[Setting]]]:
    """For each kind of target servers `auto` on them, and the modes that it can be compared
    with.
    """
    found = {}
    layers = {
        "no layer": Flags(),
        "STANDALONE": Flags("standalone", SD_TOKENS[0], point.agreement),
        "fed": Flags("fed", FED_TOKENS[0], point.ngrams),
    }
    for name, layer in layers.items():
        ahead = "lookahead+sd" if layer.layer else "lookahead"
        modes = [
            Setting("sd" if layer.layer == "standalone" else "autoregressive", layer),
            *(Setting(ahead, layer, depth, "never") for depth in DEPTHS),
            Setting(ahead, layer),
        ]
        if layer.layer != "standalone":
            modes.append(Setting("lossless", layer))
        found[name] = Setting("auto", layer), modes
    return found


def named(setting: Setting) -> str:
    """What of a setting was chosen."""
    said = [f"{setting.layer.draft_tokens} tokens"] if setting.layer.layer else []
    said += [f"depth {setting.depth}"] if setting.mode.startswith("lookahead") else []
    return ", ".join(said)


def row(point: Point, only: Sequence[str], count: int) -> Iterator[tuple[str, str, Made, float]]:
    """Of each way its name, its best setting, its answers and the speed-up over plain decoding."""
    _, plain = point.best([PLAIN], count)
    yield "plain", "", plain, 1.0
    for name, settings in ways(point).items():
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
        said = f"{one.error:+.0%}" + ("" if one.inside else f": {one.cause or 'no cause known'}")
        setting = one.row.setting
        name = setting.mode + (", fed" if setting.layer.layer == "fed" else "")
        name += ", exact" if setting.verifier == "exact" else ""
        click.echo(
            f"| {one.table.name} | {name} | {one.row.at_once} | {one.row.measured:.2f}{unit} | "
            f"{one.calculated:.2f}{unit} | {said} |"
        )
    click.echo(f"\n{inside} of {number} rows within {measured_tables.NEAR:.0%}")


@dataclass(frozen=True)
class Score:
    """How `auto` does on one kind of servers.

    Attributes:
        first, second: its tokens per second over those of the best mode, in the first and in the
            second half of the answers.
    """

    servers: str
    best: Setting
    first: float
    second: float


def score(draws: Sequence[Point], only: Sequence[str], count: int) -> Iterator[Score]:
    """`auto` over the best mode of the same servers, which is the best one for the second half of
    the answers; the same answers by both.

    Args:
        draws: the same point with different texts, of which the means are taken.
    """
    half = count // 2

    def paces(setting: Setting) -> tuple[float, float]:
        made = [point.made(setting, half, half) for point in draws]
        first = harmonic_mean([one.first_pace for one in made])
        return first, harmonic_mean([one.pace for one in made])

    for name, (auto, modes) in servers(draws[0]).items():
        if not only or name in only:
            best, fixed = max(((mode, paces(mode)) for mode in modes), key=lambda one: one[1][1])
            made = paces(auto)
            yield Score(name, best, made[0] / fixed[0], made[1] / fixed[1])


def profile(point: Point, count: int) -> None:
    """Prints where the target's time of one point goes."""
    click.echo(
        "| | seconds | prefills a step | requests a step | passes a step | target in prefills "
        "| in passes | draft | judge |\n|" + "-|" * 9
    )
    lookahead = Setting("lookahead", reading="never")
    interval = dataclasses.replace(lookahead, flags=Flags(prefill_decode_interval=16))
    half = dataclasses.replace(point, times=point.times.with_prefills(0.5))
    free = dataclasses.replace(point, times=point.times.with_prefills(0.01))
    rows = {
        "plain": (point, PLAIN),
        "depth 6": (point, lookahead),
        "depth 3": (point, dataclasses.replace(lookahead, depth=3)),
        "16 passes between prefills": (point, interval),
        "prefills of half the time": (half, lookahead),
        "prefills of no time": (free, lookahead),
    }
    for name, (where, setting) in rows.items():
        _, made = where.best([setting], count)
        cells = [made.seconds, made.prefills, made.requests, made.passes, *made.busy.values()]
        click.echo(f"| {name} | " + " | ".join(f"{one:.2f}" for one in cells) + " |")


def numbers(kind: Callable[[str], float]) -> Callable[[str], list[float]]:
    """Reads a list of numbers."""

    def list_of_numbers(given: str) -> list[float]:
        return [kind(one) for one in given.split(",")]

    return list_of_numbers


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--times", default="h200", help="a file of role_times, or a name in benchmarks/times")
    add("--agreement", type=numbers(float), default=[0.75], help="of the draft's tokens: A[,A]")
    add(
        "--alpha",
        type=numbers(float),
        default=[0.6],
        help="of the drafted steps, one for each agreement or for all",
    )
    add("--step-tokens", type=int, default=40, help="mean tokens of a step")
    add("--steps", type=int, default=10, help="of an answer")
    add(
        "--ngrams",
        type=float,
        default=0.0,
        help="share of SGLang's own guesses that are right, where a fed target has no line",
    )
    add(
        "--seed",
        type=numbers(int),
        default=[0],
        help="of the texts: N[,N]; several only with --auto, which takes means",
    )
    add("--at-once", type=numbers(int), default=[1, 8], help="answers at once: N[,N]")
    add(
        "--gpus",
        choices=["one", "each", "both"],
        default="one",
        help="one GPU for all servers, or one for each",
    )
    add(
        "--graphs",
        action="store_true",
        help="prefills are full CUDA graphs (the file's 'graph prefill')",
    )
    add(
        "--only",
        action="append",
        default=[],
        help="one way to answer, as the table names it, or with --auto one kind of servers; "
        "several times",
    )
    add(
        "--answers",
        type=int,
        default=0,
        help="of each setting (12; with --auto 32, half of which are counted); three times as many "
        "for several at once, with --auto twice",
    )
    add("--output", type=Path, help="JSON of every figure")
    add("--auto", action="store_true", help="auto over the best mode of its servers")
    add("--profile", action="store_true", help="where the time of each point goes")
    add("--validate", action="store_true", help="calculate the measured tables again")
    given = parser.parse_args()
    if len(given.alpha) == 1:
        given.alpha *= len(given.agreement)
    if len(given.seed) > 1 and not given.auto:
        parser.error("several --seed only with --auto")
    if len(given.alpha) != len(given.agreement):
        parser.error("as many --alpha as --agreement, or one")
    return given


def points(given: argparse.Namespace) -> Iterator[tuple[list[Point], dict[str, object]]]:
    """The points that are asked for, each once for every seed, and how each is recorded."""
    for shared, (agreement, alpha), at_once in itertools.product(
        {"one": [True], "each": [False], "both": [True, False]}[given.gpus],
        zip(given.agreement, given.alpha, strict=True),
        given.at_once,
    ):
        times = Times.load(given.times)
        times = times if shared else times.alone()
        if given.graphs:
            times = times.with_graphs()
        machine = "one GPU" if shared else "a GPU for each role"
        click.echo(
            f"\nagreement {agreement:g}, alpha {alpha:g}, {at_once} at once, {machine}: calculated"
        )
        known = {"agreement": agreement, "alpha": alpha, "at_once": at_once}
        draws = [
            Point(
                times,
                **known,
                step_tokens=given.step_tokens,
                steps=given.steps,
                seed=seed,
                ngrams=given.ngrams,
            )
            for seed in given.seed
        ]
        yield draws, {"gpus": machine, "graphs": given.graphs, **known}


def number_of_answers(given: argparse.Namespace, at_once: int) -> int:
    """The answers of each setting at a point."""
    number, several = (32, 2) if given.auto else (12, 3)
    return (given.answers or number) * (1 if at_once == 1 else several)


def table(point: Point, only: Sequence[str], count: int) -> Iterator[Mapping[str, object]]:
    """Prints all ways at a point, and returns their figures."""
    for way, setting, made, speedup in row(point, only, count):
        click.echo(
            f"  {way:22} {speedup:5.2f}x {made.pace:7.1f} tokens/s  {setting:20} "
            f"prefills a step {made.prefills:.2f}"
        )
        kept = {k: v for k, v in dataclasses.asdict(made).items() if k not in ("traces", "alpha")}
        yield {"way": way, "setting": setting, "speedup": speedup, "accepted": made.alpha, **kept}


def scores(
    draws: Sequence[Point], only: Sequence[str], count: int
) -> Iterator[Mapping[str, object]]:
    """Prints how `auto` does at a point, and returns its figures."""
    for one in score(draws, only, count):
        best = f"{one.best.mode}, reading {one.best.reading}, {named(one.best)}"
        click.echo(f"  {one.servers:12} {one.first:.2f}, then {one.second:.2f} of {best}")
        yield {"servers": one.servers, "best": best, "first": one.first, "second": one.second}


def main() -> None:
    keep_what_is_imported()
    given = arguments()
    if given.validate:
        return validate()
    found = list[Mapping[str, object]]()
    for draws, known in points(given):
        point = draws[0]
        count = number_of_answers(given, point.at_once)
        if given.profile:
            profile(point, count)
            continue
        began = time.monotonic()
        made = scores(draws, given.only, count) if given.auto else table(point, given.only, count)
        for figures in made:
            found.append({**known, **figures})
            if given.output is not None:
                given.output.write_text(json.dumps(found, indent=1), "utf-8")
        click.echo(f"  ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
