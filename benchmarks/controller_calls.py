"""Counts the calls of Python functions and built-ins that the controller makes for each request to
a runtime.

python benchmarks/controller_calls.py            # 16 answers of 60 steps at once on the virtual
clock: always the same python benchmarks/controller_calls.py --policy adaptive
python benchmarks/controller_calls.py --way http     # runtimes in processes of their own; real
time, half a minute python benchmarks/controller_calls.py --way serve    # streamed by the endpoint,
with runtimes in its process
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import pstats
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import click
import httpx

from lr_sglang.config import Lookahead
from lr_sglang.engine.client import Client
from lr_sglang.engine.clock import run_virtually
from lr_sglang.serve.app import create_app
from lr_sglang.serve.server import EndpointServer
from lr_sglang.serve.settings import Service
from lr_sglang.simulated.model import Model, Writer
from lr_sglang.simulated.simulation import Simulation
from lr_sglang.simulated.transport import simulated_roles
from lr_sglang.simulated.virtual import answer_on, numbers, questions
from lr_sglang.tasks import Question

ROOT, SHOWN = Path(__file__).parents[1], 25  # modules
Counted = tuple[int, cProfile.Profile]  # requests to runtimes, and the profile of their work


def where(function: tuple[str, int, str]) -> str:
    """The module of a function; empty for a built-in one."""
    for root in ("lr_sglang/", "programs/", "site-packages/", "/asyncio/"):
        if root in function[0]:
            return function[0].rpartition(root)[2]
    return "" if function[0] == "~" else function[0]


def in_thread(
    run: Callable[[Coroutine[Any, Any, Any]], Any], work: Coroutine[Any, Any, Any]
) -> Any:
    """Runs work in a new thread; in the main thread ``asyncio.Runner`` would also handle
    signals.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run, work).result()


async def counted(
    answer: Callable[[Sequence[Question]], Coroutine[Any, Any, Any]], asked: Sequence[Question]
) -> Counted:
    """Profiles the requests for these questions, after a run that fills imports and caches."""
    await answer(asked[:2])
    profile = cProfile.Profile()
    with profile:
        traces = await answer(asked)
    return sum(len(trace.branches) for trace in traces), profile


def virtual(
    simulation: Simulation, writer: Writer, look: Lookahead, asked: Sequence[Question]
) -> Counted:
    """On the virtual clock."""
    roles = simulated_roles(simulation, writer)
    return in_thread(run_virtually, counted(partial(answer_on, roles, look), asked))  # type: ignore[no-any-return]


def http(
    simulation: Simulation, writer: Writer, look: Lookahead, asked: Sequence[Question]
) -> Counted:
    """Over HTTP, in real time."""
    model, roles = simulation.model, simulated_roles(simulation, writer)
    given = {"alpha": model.alpha[0], "steps": model.steps, "step-seconds": simulation.step_seconds}
    given |= {"c1": simulation.c1, "judge-seconds": simulation.judge_seconds, "port": 0}
    options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, str(ROOT / "cli.py"), "simulate", "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            for role, url in json.loads(process.stdout.readline())["urls"].items():
                roles[role].transport = Client(url, role)
            return in_thread(asyncio.run, counted(partial(answer_on, roles, look), asked))  # type: ignore[no-any-return]
        finally:
            process.terminate()


def serve(
    simulation: Simulation, writer: Writer, look: Lookahead, asked: Sequence[Question]
) -> Counted:
    """Streamed by the endpoint to clients in another thread, in real time."""
    service = Service(
        model="simulated", modes=("lookahead",), lookahead=look, concurrency=len(asked)
    )
    app, profile = create_app(simulated_roles(simulation, writer), service), cProfile.Profile()
    listening, loop = socket.create_server(("127.0.0.1", 0)), Future[asyncio.AbstractEventLoop]()
    server = EndpointServer(app, service, lambda: loop.set_result(asyncio.get_running_loop()))

    async def one(client: httpx.AsyncClient, question: Question) -> None:
        body = {
            "model": "simulated",
            "messages": [{"role": "user", "content": question.question}],
            "stream": True,
        }
        async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            assert [line async for line in reply.aiter_lines()][-2] == "data: [DONE]"

    async def stream(asked: Sequence[Question]) -> int:
        before = sum(gate.calls for gate in app.state.health.gates.values())
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=600) as client:
            await asyncio.gather(*(one(client, question) for question in asked))
        return sum(gate.calls for gate in app.state.health.gates.values()) - before

    with ThreadPoolExecutor(1) as thread:
        serving = thread.submit(asyncio.run, server.serve([listening]))
        asyncio.run(stream(asked[:2]))
        loop.result().call_soon_threadsafe(profile.enable)
        requests = asyncio.run(stream(asked))
        loop.result().call_soon_threadsafe(profile.disable)
        server.end()
        serving.result()
    return requests, profile


WAYS = {"virtual": virtual, "http": http, "serve": serve}


@click.command()
@click.option("--questions", "count", default=16, show_default=True)
@click.option("--steps", default=60, show_default=True)
@click.option(
    "--policy", default="fixed", type=click.Choice(["fixed", "adaptive"]), show_default=True
)
@click.option("--way", default="virtual", type=click.Choice(list(WAYS)), show_default=True)
def main(count: int, steps: int, policy: Any, way: str) -> None:
    """Prints the calls of a request, in all and by module; a call of a built-in counts for the
    calling module.
    """
    simulation = Simulation(
        Model((0.62,), steps=steps), step_seconds=0.2, c1=0.1, judge_seconds=0.0
    )
    writer, asked, look = (
        Writer(simulation.model),
        questions(count),
        Lookahead(depth=6, policy=policy),
    )
    writer.prepare(numbers(writer, asked))
    requests, profile = WAYS[way](simulation, writer, look, asked)
    calls = Counter[str]()
    for function, (_, number, _, _, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if name := where(function):
            calls[name] += number
        for caller, (_, times, _, _) in () if name else callers.items():
            calls[where(caller) or "built-ins"] += times
    click.echo(f"{requests} requests, {calls.total() / requests:.1f} calls each")
    for name, number in calls.most_common(SHOWN):
        click.echo(f"{number / requests:7.1f}  {name}")


if __name__ == "__main__":
    main()
