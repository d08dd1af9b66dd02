"""Compares the speed of two releases of SGLang: the same questions in turns, on servers of both.

    make setup && make setup SGLANG=0.5.16
    python -m benchmarks.releases .venv/bin .venv-0.5.16/bin --questions 40

Each folder is the ``bin`` of an environment with lr-sglang and its SGLang. First come servers
without a token layer, then those with it; the sets of both releases are up at the same time, and
one is idle while the other works. The releases take turns question by question, in every mode, and
the first one changes. The client is always the environment that runs this file. Ratios are of
tokens/s: the first environment's over the second's.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from benchmarks.pocket_speed import MODES, Roles, answer, layered
from lr_sglang import tasks
from lr_sglang.config import Deployment
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes import launched
from lr_sglang.runtimes.connect import deployed

Times = dict[str, list[tuple[int, float]]]  # by mode: tokens and seconds of every answer


@contextmanager
def servers(folder: Path, with_layer: bool, scratch: Path) -> Iterator[tuple[Deployment, Roles]]:
    """The pocket deployment on the SGLang of an environment, until the end."""
    name = f"release-{abs(hash(folder))}"
    options = [
        "--concurrency",
        "1",
        "--name",
        name,
        *(["--with-token-layer"] if with_layer else []),
    ]
    process = subprocess.Popen(
        [folder / "lr-sglang", "launch", "pocket", *options], stderr=subprocess.DEVNULL
    )
    try:
        while True:
            try:
                deployment = launched.find(name).attachable()
                break
            except ConfigError:  # not up yet
                if process.poll() is not None:
                    sys.exit(
                        f"{folder}: its servers did not start; try: {folder}/lr-sglang launch "
                        "pocket"
                    )
                time.sleep(0.2)
        with deployed(deployment, scratch) as roles:
            yield deployment, roles
    finally:
        process.terminate()
        process.wait()


def measure(
    folders: Sequence[Path], questions: Sequence[tasks.Question], modes: Sequence[str]
) -> list[Times]:
    """All questions in all modes, on the servers of each environment in turns."""
    found: list[Times] = [{mode: [] for mode in modes} for _ in folders]
    for with_layer in sorted({layered(mode) for mode in modes}):
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            sets = [stack.enter_context(servers(folder, with_layer, scratch)) for folder in folders]
            for number, question in enumerate(questions):
                for mode in (mode for mode in modes if layered(mode) == with_layer):
                    for which in sorted(range(len(folders)), reverse=number % 2 == 1):
                        trace = answer(mode, question, *sets[which])
                        if number:  # the first is for warm-up
                            found[which][mode].append((len(trace.ids), trace.seconds))
    return found


def ratios(first: Times, second: Times, mode: str) -> tuple[float, float, float, float]:
    """The ratio over all answers, and its median and quartiles over the questions."""

    def pace(times: Sequence[tuple[int, float]]) -> float:
        return sum(tokens for tokens, _ in times) / sum(seconds for _, seconds in times)

    each = [
        pace([one]) / pace([other]) for one, other in zip(first[mode], second[mode], strict=True)
    ]
    low, median, high = statistics.quantiles(each, n=4)
    return pace(first[mode]) / pace(second[mode]), median, low, high


@click.command(help=__doc__.split("\n\n")[0] if __doc__ else None)
@click.argument("folders", nargs=2, type=click.Path(exists=True, path_type=Path))
@click.option("--questions", default=40, show_default=True)
@click.option("--modes", default=",".join(MODES), show_default=True)
@click.option(
    "--json",
    "output",
    type=click.Path(path_type=Path),
    help="Also write every answer's tokens and seconds.",
)
def main(folders: tuple[Path, Path], questions: int, modes: str, output: Path | None) -> None:
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state  # keeps these deployments apart from the user's own
        found = measure(folders, tasks.load("pocket", limit=questions + 1), modes.split(","))
    for mode in modes.split(","):
        for folder, times in zip(folders, found, strict=True):
            tokens, seconds = map(sum, zip(*times[mode], strict=True))
            click.echo(
                f"{mode:15} {folder}: {seconds / questions:.3f} s, {tokens / seconds:.1f} tokens/s"
            )
        whole, median, low, high = ratios(found[0], found[1], mode)
        click.echo(
            f"{mode:15} ratio {whole:.3f}, median question {median:.3f} (quarters {low:.3f} to "
            f"{high:.3f})"
        )
    if output:
        output.write_text(json.dumps([str(folder) for folder in folders] + found))


if __name__ == "__main__":
    main()
