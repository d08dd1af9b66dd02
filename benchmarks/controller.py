"""Measures the controller: times of the real programs on simulated runtimes, compared with the
minimum possible times.

    python -m benchmarks.controller --alpha .62 --c1 .1 --step-seconds .2 --depth 6 --judge-seconds 0 \\
        --steps 60 --questions 64 --json

Except for the runtimes, all code is that of a real run: the runner, SGLang's interpreter, the
backend, the verifier. The bound is the least time that the same schedule can need for the same
draws, on the virtual clock; efficiency is bound / measured time. ``runtimes_late_ms`` is how late
the operating system woke the simulated runtimes, which lowers the efficiency.
"""

from __future__ import annotations

import asyncio
import json as json_format
import os
import resource
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from lr_sglang.sglang_api.light_import import leave_torch_out

if __name__ == "__main__":
    leave_torch_out()

import click
import psutil

from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
from lr_sglang.config import ROLES, Lookahead, Sampling
from lr_sglang.engine.loop import background
from lr_sglang.errors import LookaheadError
from lr_sglang.results.record import Record
from lr_sglang.tasks import Question
from lr_sglang.theory.judged import speedup
from tests import plan
from tests.simulated.model import Simulation, Writer
from tests.simulated.options import simulation as simulation_of
from tests.simulated.options import simulation_options
from tests.simulated.transport import simulated_roles, wake_exactly
from tests.simulated.virtual import alone, answer_all, numbers, questions

MODE = "lookahead"
LATENESS_SECONDS = 0.02
LATENESSES = 6000  # number of samples, of two minutes


class Lateness:
    """Samples the delay of a timer of the running loop. Call ``start`` and ``stop`` on that loop."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=LATENESSES)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts sampling."""
        self._task = asyncio.get_running_loop().create_task(self._sample())

    def stop(self) -> None:
        """Stops sampling; the samples are kept."""
        if self._task is not None:
            self._task.cancel()

    def p99(self) -> float:
        """The 99th percentile of the lateness, in seconds; 0 without samples."""
        ordered = sorted(self._samples)
        return ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + LATENESS_SECONDS
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            now = loop.time()
            self._samples.append(max(0.0, now - due))
            due = now + LATENESS_SECONDS


@dataclass(frozen=True)
class Measured:
    """A measurement.

    Attributes:
        bound, alone: seconds of each answer: the minimum possible, and by the target alone.
        late: total seconds by which simulated runtimes replied late, because the loop was busy or
            woken late.
        loop_late: 99th percentile of the lateness of the event loop's timers, in seconds.
    """

    records: list[Record]
    bound: list[float]
    alone: list[float]
    late: float
    loop_late: float
    usage: Usage

    @property
    def seconds(self) -> list[float]:
        """The measured seconds of each answer."""
        return [record["seconds"] for record in self.records]


@dataclass
class Usage:
    """The resources that a process uses in a ``with`` block.

    Attributes:
        wall, cpu: seconds.
        others: processor seconds of all other processes of this machine.
        threads: maximum number of threads.
        memory: peak megabytes of the process at each ``look``, about once a second.
    """

    wall: float = 0.0
    cpu: float = 0.0
    others: float = 0.0
    threads: int = 0
    memory: list[float] = field(default_factory=list)

    def __enter__(self) -> Usage:
        self.wall, self.cpu = -time.monotonic(), -time.process_time()
        self.others = -others_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.look()
        self.wall, self.cpu = self.wall + time.monotonic(), self.cpu + time.process_time()
        self.others += others_seconds()

    def look(self) -> None:
        """Records the current maxima."""
        self.threads = max(self.threads, threading.active_count())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.memory.append(peak / (2**20 if sys.platform == "darwin" else 2**10))


def others_seconds() -> float:
    """Processor seconds of all processes but this one since the machine was started."""
    of_all = psutil.cpu_times()
    return float(of_all.user + of_all.nice + of_all.system) - time.process_time()


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keeps this thread, and threads that it starts, on one core, as ``taskset`` does.

    Python runs one thread at a time; on several cores, each switch between threads wakes another
    core, with a cold cache. Does nothing on systems without CPU affinity.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def measure(simulation: Simulation, look: Lookahead, asked: Sequence[Question]) -> Measured:
    """Answers questions concurrently.

    Raises:
        LookaheadError: an answer failed.
    """
    writer, records = Writer(simulation.model), dict[str, Record]()
    seed = simulation.model.seed
    plan_of_all = Plan().with_settings(lookahead=look, sampling=Sampling(seed=seed))
    usage, late = Usage(), Lateness()
    writer.prepare(numbers(writer, asked))
    with on_one_core():
        wake_exactly()
        loop = background(selectors.SelectSelector())
        roles = simulated_roles(simulation, writer)
        loop.call_soon_threadsafe(late.start)
        runner = Runner(roles, plan_of_all, len(asked))
        runner.prepare([MODE])
        with usage:
            for record in runner.run(plan(asked, [MODE]), usage.look):
                records[record["question_id"]] = record
        loop.call_soon_threadsafe(late.stop)
    for record in records.values():
        if error := record["error"]:
            raise LookaheadError(error["message"], role=error["role"], hint=error["hint"])
    return Measured(
        records=[records[question.id] for question in asked],
        bound=[answer.seconds for answer in answer_all(simulation, look, asked, writer)],
        alone=alone(simulation, numbers(writer, asked), writer),
        late=sum(backend.transport.late for backend in roles.values()),
        loop_late=late.p99(),
        usage=usage,
    )


def report(simulation: Simulation, look: Lookahead, found: Measured) -> dict[str, Any]:
    """The figures of a measurement, for JSON."""
    count, usage = len(found.records), found.usage
    seconds, bound, without = (
        sum(times) / count for times in (found.seconds, found.bound, found.alone)
    )
    each = sorted(least / taken for taken, least in zip(found.seconds, found.bound, strict=True))
    steps = sum(len(record["steps"]) for record in found.records)
    calls = {role: sum(r["tokens"][role]["calls"] for r in found.records) for role in ROLES}
    total = sum(calls.values())
    waits = simulation.judge_seconds / simulation.step_seconds if look.verifier == "judge" else 0.0
    # the versions of a step are drawn independently
    accepted = 1 - (1 - simulation.model.alpha[-1]) ** look.width
    judged = sum(record["judged"] for record in found.records)
    memory = usage.memory
    return {
        "questions": count,
        "lookahead": look.to_dict(),
        "simulation": asdict(simulation),
        "seconds": seconds,
        "speedup": without / seconds,
        "bound": {
            "event_driven": without / bound,
            "formula": speedup(look.schedule, accepted, simulation.c1, look.depth, waits),
            "paper": speedup(look.schedule, accepted, simulation.c1, look.depth),
        },
        "efficiency": bound / seconds,
        "efficiency_worst": each[0],
        "efficiency_best": each[-1],
        "alpha": sum(record["accepted"] for record in found.records) / max(1, judged),
        "per_step": {
            "target_branches": calls["target"] / steps,
            "draft_branches": calls["draft"] / steps,
            "judge_calls": calls["judge"] / steps,
        },
        "wall_seconds": usage.wall,
        "cpu_seconds": usage.cpu,
        "cpu_share": usage.cpu / usage.wall,
        "cpu_share_of_others": usage.others / usage.wall,
        "calls": total,
        "calls_per_second": total / usage.wall,
        "cpu_ms_per_call": 1000 * usage.cpu / total,
        "runtimes_late_ms": 1000 * found.late / total,
        "loop_late_p99_ms": 1000 * found.loop_late,
        "threads": usage.threads,
        "megabytes": memory[-1],
        "megabytes_grown": memory[-1] - memory[len(memory) // 2],
    }


@click.command()
@simulation_options
@click.option("--depth", default=6, help="Steps to look ahead.")
@click.option("--schedule", type=click.Choice(["async", "sync"]), default="async")
@click.option(
    "--verifier",
    type=click.Choice(["judge", "exact"]),
    help="[default: judge, or exact with --same-words or --judge-seconds 0]",
)
@click.option("--questions", "count", type=click.IntRange(1), default=1, help="Answers at once.")
@click.option("--json", is_flag=True, help="Print the figures as a line of JSON.")
def main(
    depth: int, schedule: str, verifier: str | None, count: int, json: bool, **given: Any
) -> None:
    """Measures the controller over simulated runtimes, with no model."""
    if verifier is None:
        verifier = "exact" if given["same_words"] or not given["judge_seconds"] else "judge"
    given["same_words"] = given["same_words"] or verifier == "exact"
    simulation = simulation_of(**given)
    look = Lookahead(
        schedule=schedule,
        depth=depth,
        width=simulation.model.width,
        # a blank line ends each step, as almost always in real models
        max_step_tokens=simulation.model.longest + 1,
        verifier=verifier,
    )
    figures = report(simulation, look, measure(simulation, look, questions(count)))
    if json:
        click.echo(json_format.dumps(figures))
        return
    for name, value in {**figures, **figures["bound"], **figures["per_step"]}.items():
        if isinstance(value, int | float):
            click.echo(f"{name:20} {value:10.3f}")


if __name__ == "__main__":
    main()
