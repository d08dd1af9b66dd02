"""Measures the time that ``lr-sglang serve`` adds to a step: the same programs in this process, and
over HTTP.

    python -m benchmarks.endpoint        # 16 answers at a time, both ways in turn, a few minutes
    python -m benchmarks.endpoint --concurrency 4 --steps 40 --rounds 5

Both ways use the same process of simulated runtimes over HTTP and ask the same questions, with the
same drafts accepted. This process runs the programs itself, or is the endpoint's streaming client.
The runtimes have the slots that ``lr-sglang launch --concurrency N`` would give them. Needs httpx
(the dev extra).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx

from lr_sglang import verifiers
from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.policy import RunStatistics
from lr_sglang.api.runner import PROGRAMS, keep_what_is_imported
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.client import Client
from lr_sglang.engine.loop import call
from lr_sglang.engine.server_facts import ServerFacts
from lr_sglang.engine.tokenizer import load_tokenizer
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import run_program
from lr_sglang.modes import MODES
from tests.simulated.words import tokenizer_path

ROOT = Path(__file__).parents[1]


@dataclass
class Measured:
    """The figures of one way: seconds between the steps of each answer, and processor seconds."""

    steps: dict[str, list[float]] = field(default_factory=dict)
    cpu: float = 0.0

    def add(self, other: Measured, number: int) -> None:
        """Adds those of another round."""
        self.steps |= {f"{number}: {question}": gaps for question, gaps in other.steps.items()}
        self.cpu += other.cpu

    @property
    def gaps(self) -> list[float]:
        return sorted(gap for gaps in self.steps.values() for gap in gaps)


@contextmanager
def started(*arguments: object) -> Iterator[tuple[dict[str, Any], int]]:
    """Starts a module that prints JSON when it is ready; yields that and the process id."""
    command = [sys.executable, "-m", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline()), process.pid
        finally:
            process.terminate()


def cpu_of(pid: int) -> float:
    """Processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class InProcess:
    """The programs, as the endpoint runs them."""

    def __init__(
        self, urls: Mapping[str, str], look: Lookahead, concurrency: int, slots: int
    ) -> None:
        tokenizer = load_tokenizer(tokenizer_path())
        self.roles = {
            role: RuntimeBackend(
                role,
                Client(url, role),
                tokenizer,
                ServerFacts(seeded=True, max_running_requests=slots, token_layer=""),
            )
            for role, url in urls.items()
        }
        for backend in self.roles.values():
            backend.roles, backend.readable = self.roles, False
        self.look, self.verifier = (
            look,
            verifiers.make_verifier(look.verifier, verifiers.Setup(self.roles, "paper")),
        )
        self.experience, self._places = RunStatistics(), asyncio.Semaphore(concurrency)
        keep_what_is_imported()

    def __call__(self, questions: list[str], mode: str) -> Measured:
        made, before = Measured(), time.process_time()
        made.steps = call(self._all(questions, mode), self.roles["target"].loop)
        made.cpu = time.process_time() - before
        return made

    async def _all(self, questions: list[str], mode: str) -> dict[str, list[float]]:
        answers = await asyncio.gather(*(self._one(question, mode) for question in questions))
        return dict(zip(questions, answers, strict=True))

    async def _one(self, question: str, mode: str) -> list[float]:
        async with self._places:
            return await self._made(question, mode)

    async def _made(self, question: str, mode: str) -> list[float]:
        gaps, last = [], time.monotonic()

        def on_step(step: object) -> None:
            nonlocal last
            now = time.monotonic()
            gaps.append(now - last)
            last = now

        ahead = MODES[mode].ahead
        request = AnswerRequest(
            MODES[mode].lookahead(self.look),
            Sampling(temperature=0.0, seed=0),
            Limits(),
            self.verifier if ahead else None,
            experience=self.experience,
        )
        request.on_step = on_step
        asked = [{"role": "user", "content": question}]
        program = PROGRAMS[MODES[mode].program]
        await run_program(program, asked, request, backend=self.roles["target"])
        return gaps


class OverHttp:
    """A client of the endpoint, in an event loop of its own."""

    def __init__(self, url: str, model: str, pid: int) -> None:
        self.url, self.model, self.pid = url, model, pid

    def __call__(self, questions: list[str], mode: str) -> Measured:
        made, before = Measured(), cpu_of(self.pid)
        made.steps = asyncio.run(self._all(questions, mode))
        made.cpu = cpu_of(self.pid) - before
        return made

    async def _all(self, questions: list[str], mode: str) -> dict[str, list[float]]:
        async with httpx.AsyncClient(
            timeout=600, limits=httpx.Limits(max_connections=None)
        ) as client:
            await client.get(f"{self.url}/health")
            answers = await asyncio.gather(
                *(self._one(client, question, mode) for question in questions)
            )
        return dict(zip(questions, answers, strict=True))

    async def _one(self, client: httpx.AsyncClient, question: str, mode: str) -> list[float]:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "stream": True,
        }
        body |= {"temperature": 0, "seed": 0, "lookahead": {"mode": mode}}
        gaps, last = [], time.monotonic()
        async with client.stream("POST", f"{self.url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                chunk = json.loads(line[6:]) if line.startswith("data: {") else {"choices": []}
                if any(choice["delta"].get("content") for choice in chunk["choices"]):
                    now = time.monotonic()
                    gaps.append(now - last)
                    last = now
        return gaps


def table(mode: str, inside: Measured, outside: Measured) -> str:
    """A table of both ways and their difference."""
    lines = []
    for name, made in (("in process", inside), ("endpoint", outside)):
        gaps = made.gaps
        middle, worst = 1000 * statistics.median(gaps), 1000 * gaps[int(0.99 * len(gaps))]
        mean, cpu = 1000 * statistics.mean(gaps), 1000 * made.cpu / len(gaps)
        lines.append(f"| {mode} | {name} | {mean:.1f} | {middle:.1f} | {worst:.1f} | {cpu:.1f} |")
    later = sorted(
        1000 * (sum(outside.steps[key][1:]) - sum(gaps[1:])) / (len(gaps) - 1)
        for key, gaps in inside.steps.items()
    )
    first = sorted(1000 * (outside.steps[key][0] - gaps[0]) for key, gaps in inside.steps.items())
    for name, added in (("after the first, by answer", later), ("to the first", first)):
        mean, worst = statistics.mean(added), added[int(0.99 * len(added))]
        lines.append(
            f"| {mode} | **added** {name} | {mean:.1f} | {statistics.median(added):.1f} | "
            f"{worst:.1f} | |"
        )
    return "\n".join(lines)


def compare(
    mode: str, concurrency: int, steps: int, rounds: int, step_seconds: float
) -> tuple[Measured, Measured]:
    """Both ways in turn: in this process, and over HTTP.

    Args:
        concurrency: answers at a time.
        steps: of an answer.
        rounds: of ``concurrency`` answers each way; one more round before them fills pools and
            caches.
        step_seconds: of the target.
    """
    look = Lookahead(depth=4)
    speed = ("--steps", steps, "--step-seconds", step_seconds, "--judge-seconds", step_seconds / 5)
    slots = policy.running_requests(look, "target", concurrency)
    with started("tests.simulated", *speed, "--slots", slots) as (simulated, _):
        urls = simulated["urls"]
        attach = [word for role, url in urls.items() for word in (f"--{role}", url)]
        options = ("--concurrency", concurrency, "--depth", look.depth, "--mode", mode)
        with started("cli", "serve", "--json", "--port", 0, *attach, *options) as (told, pid):
            ways: list[Callable[[list[str], str], Measured]] = [
                InProcess(urls, look, concurrency, slots),
                OverHttp(told["url"], told["model"], pid),
            ]
            inside, outside = found = Measured(), Measured()
            for number in range(rounds + 1):
                questions = [f"{i} of {number}?" for i in range(concurrency)]
                for way, all_of_it in zip(ways, found, strict=True):
                    made = way(questions, mode)
                    if number:
                        all_of_it.add(made, number)
    return inside, outside


def main() -> None:
    """Compares both ways in each mode."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--concurrency", type=int, default=16, help="answers at a time")
    parser.add_argument("--steps", type=int, default=20, help="of an answer")
    parser.add_argument("--rounds", type=int, default=3, help="of as many answers, each way")
    parser.add_argument("--step-seconds", type=float, default=1.0, help="of the target")
    parser.add_argument("--mode", nargs="*", default=["autoregressive", "lookahead"])
    given = parser.parse_args()
    click.echo(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {given}")
    click.echo("| mode | | ms a step, mean | median | p99 | CPU ms a step |\n|-|-|-|-|-|-|")
    served: dict[str, float] = {}
    for mode in given.mode:
        inside, outside = compare(
            mode, given.concurrency, given.steps, given.rounds, given.step_seconds
        )
        served[mode] = statistics.mean(outside.gaps)
        click.echo(table(mode, inside, outside))
    if len(served) > 1:
        plain, *others = served
        speed = ", ".join(f"{mode} {served[plain] / served[mode]:.2f}x" for mode in others)
        click.echo(f"the endpoint against its own {plain}, a step in the mean: {speed}")
    click.echo(f"load {os.getloadavg()[0]:.1f}, {threading.active_count()} threads here")


if __name__ == "__main__":
    main()
