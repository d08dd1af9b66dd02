"""Measures the controller: times of the real programs on simulated runtimes, compared with the
minimum possible times.

Except for the runtimes, all code is that of a real run: the runner, SGLang's interpreter, the
backend, the verifier.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import selectors
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lr_sglang.api.configuration import Settings
from lr_sglang.api.runner import Runner
from lr_sglang.config import ROLES, Lookahead, Sampling
from lr_sglang.engine.lateness import Lateness
from lr_sglang.engine.loop import background
from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.results.record import Record
from lr_sglang.sglang_api.light_import import leave_torch_out
from lr_sglang.simulated.model import Writer
from lr_sglang.simulated.serving import runtime_processes
from lr_sglang.simulated.simulation import Simulation
from lr_sglang.simulated.transport import SimulatedTransport, simulated_roles, wake_exactly
from lr_sglang.simulated.virtual import alone, answer_all, numbers, questions
from lr_sglang.tasks import Question
from lr_sglang.tasks.question import plan

MODE = "lookahead"


@dataclass(frozen=True)
class Shard:
    """The measurement of one process.

    Attributes:
        bound, alone: seconds of each answer: the minimum possible, and by the target alone.
        late: total seconds by which simulated runtimes replied late, because the loop was busy or
            woken late.
        loop_late: 99th percentile of the lateness of the event loop's timers, in seconds.
        servers: CPU seconds of runtimes in other processes.
    """

    records: list[Record]
    bound: list[float]
    alone: list[float]
    late: float
    loop_late: float
    usage: Usage
    servers: float = 0.0

    @property
    def seconds(self) -> list[float]:
        """The measured seconds of each answer."""
        return [record["seconds"] for record in self.records]


@dataclass
class Usage:
    """The resources that a process uses in a ``with`` block.

    Attributes:
        wall, cpu: seconds.
        threads: maximum number of threads.
        memory: peak megabytes of the process at each ``look``, about once a second.
    """

    wall: float = 0.0
    cpu: float = 0.0
    threads: int = 0
    memory: list[float] = field(default_factory=list)

    def __enter__(self) -> Usage:
        self.wall, self.cpu = -time.monotonic(), -time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.look()
        self.wall, self.cpu = self.wall + time.monotonic(), self.cpu + time.process_time()

    def look(self) -> None:
        """Records the current maxima."""
        self.threads = max(self.threads, threading.active_count())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.memory.append(peak / (2**20 if sys.platform == "darwin" else 2**10))


def measure(
    simulation: Simulation, look: Lookahead, count: int = 1, processes: int = 1, http: bool = False
) -> list[Shard]:
    """Answers ``count`` questions concurrently, in one process or several.

    Args:
        http: whether the runtimes are servers in other processes.

    Raises:
        ConfigError: the simulation cannot be divided among several processes.
        LaunchError: a server does not start.
    """
    asked = questions(count)
    if http:
        if processes > 1:
            raise ConfigError(
                "runtimes over HTTP serve one process here", hint="leave out --http, or --processes"
            )
        with runtime_processes(simulation) as (roles, cpu):
            used = cpu()
            made = shard(simulation, look, asked, roles=roles)
            return [replace(made, servers=cpu() - used)]
    if processes == 1:
        return [shard(simulation, look, asked)]
    if not simulation.steady:
        raise ConfigError(
            "several processes have runtimes of their own",
            hint="leave out --batch-slowdown, --slots and --times, or --processes",
        )
    parts = [part for n in range(processes) if (part := asked[n::processes])]
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        len(parts), fresh, leave_torch_out
    ) as pool:  # the processes run only our own code
        return list(pool.map(partial(shard, simulation, look), parts, range(len(parts))))


@contextmanager
def on_one_core(number: int) -> Iterator[None]:
    """Keeps this thread, and threads that it starts, on one core, as ``taskset`` does.

    Python runs one thread at a time; on several cores, each switch between threads wakes another
    core, with a cold cache. Does nothing on systems without CPU affinity.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[-1 - number % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def shard(
    simulation: Simulation,
    look: Lookahead,
    asked: Sequence[Question],
    core: int = 0,
    roles: Mapping[str, RuntimeBackend] | None = None,
) -> Shard:
    """Answers questions concurrently in this process.

    Args:
        core: index of the core on which the process runs, counted from the last.
        roles: backends; None for runtimes in this process.

    Raises:
        LookaheadError: an answer failed.
    """
    writer, records = Writer(simulation.model), dict[str, Record]()
    settings = Settings(lookahead=look, sampling=Sampling(seed=simulation.model.seed))
    usage, late = Usage(), Lateness()
    writer.prepare(numbers(writer, asked))
    with on_one_core(core):
        wake_exactly()
        loop = background(None if roles else selectors.SelectSelector())
        roles = roles or simulated_roles(simulation, writer)
        loop.call_soon_threadsafe(late.start)
        with Runner(roles, settings, len(asked)) as runner:
            runner.prepare([MODE])
            with usage:
                for record in runner.run(plan(asked, [MODE]), usage.look):
                    records[record["question_id"]] = record
        loop.call_soon_threadsafe(late.stop)
    for record in records.values():
        if error := record["error"]:
            raise LookaheadError(error["message"], role=error["role"], hint=error["hint"])
    return Shard(
        records=[records[question.id] for question in asked],
        bound=[answer.seconds for answer in answer_all(simulation, look, asked, writer)],
        alone=alone(simulation, numbers(writer, asked), writer),
        late=sum(
            b.transport.late for b in roles.values() if isinstance(b.transport, SimulatedTransport)
        ),
        loop_late=late.p99(),
        usage=usage,
    )


def report(simulation: Simulation, look: Lookahead, shards: Sequence[Shard]) -> dict[str, Any]:
    """The figures of a measurement, for JSON."""
    from lr_sglang.theory.judged import any_of, speedup

    every = [
        one for part in shards for one in zip(part.seconds, part.bound, part.alone, strict=True)
    ]
    seconds, bound, without = (sum(column) / len(every) for column in zip(*every, strict=True))
    each = sorted(least / taken for taken, least, _ in every)
    records = [record for part in shards for record in part.records]
    steps = sum(len(record["steps"]) for record in records)
    calls = {role: sum(record["tokens"][role]["calls"] for record in records) for role in ROLES}
    used, total = [part.usage for part in shards], sum(calls.values())
    wall, cpu = max(one.wall for one in used), sum(one.cpu for one in used)
    waits = simulation.judge_seconds / simulation.step_seconds if look.verifier == "judge" else 0.0
    shares = [part for row in simulation.model.trace for part in row] or simulation.model.alpha
    accepted = any_of(
        sum(shares) / len(shares) if simulation.model.trace else shares[-1], look.width
    )
    return {
        "simulated": True,
        "questions": len(every),
        "processes": len(shards),
        "lookahead": look.to_dict(),
        "simulation": simulation.to_dict(),
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
        "alpha": sum(record["accepted"] for record in records)
        / max(1, sum(record["judged"] for record in records)),
        "per_step": {
            "target_branches": calls["target"] / steps,
            "draft_branches": calls["draft"] / steps,
            "judge_calls": calls["judge"] / steps,
        },
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "cpu_share": cpu / wall,
        "calls": total,
        "calls_per_second": total / wall,
        "cpu_ms_per_call": 1000 * cpu / total,
        "servers_cpu_ms_per_call": 1000 * sum(p.servers for p in shards) / total,
        "runtimes_late_ms": 1000 * sum(p.late for p in shards) / total,
        "loop_late_p99_ms": 1000 * max(p.loop_late for p in shards),
        "threads": max(one.threads for one in used),
        "megabytes": sum(one.memory[-1] for one in used),
        "megabytes_grown": sum(one.memory[-1] - one.memory[len(one.memory) // 2] for one in used),
    }
