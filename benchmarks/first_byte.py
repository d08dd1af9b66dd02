"""Measures how much later the first byte of an answer comes through ``lr-sglang serve`` than from
the target itself.

    python -m benchmarks.first_byte      # 64 streams open, 200 requests each way, half a minute
    python -m benchmarks.first_byte --streams 0 --requests 50

Four processes: a target that sends its first byte at once, the endpoint, clients of the streams
that are open through it, and this one, which asks. The requests have tools, so they are passed on.
Needs aiohttp, which the package needs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

import aiohttp
import click
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from benchmarks.endpoint import cpu_of, started
from tests.simulated.model import Model, Simulation, Writer
from tests.simulated.runtime import SimulatedRuntime
from tests.simulated.server import SimulatedServer, listen

PATH = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
LONG, SHORT = 100_000, 2  # chunks
WARM = 20


@dataclass
class Measured:
    """Seconds to the first byte, each way, and the endpoint's processor seconds."""

    direct: list[float]
    through: list[float]
    cpu_share: float

    @property
    def added(self) -> float:
        """The difference of the medians."""
        return statistics.median(self.through) - statistics.median(self.direct)


def chunk(text: str, why: str | None = None) -> bytes:
    """A chunk of a stream in SGLang's form."""
    choice = {
        "index": 0,
        "delta": {"content": text},
        "logprobs": None,
        "finish_reason": why,
        "matched_stop": None,
    }
    body = {
        "id": "chat-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "simulated-target",
    }
    return b"data: " + json.dumps({**body, "choices": [choice], "usage": None}).encode() + b"\n\n"


def upstream(ready: Connection, seconds: float) -> None:
    """A target that sends the first chunk at once, then one every ``seconds``."""
    model = Model()
    runtime = SimulatedRuntime("target", Simulation(model), Writer(model))
    others = SimulatedServer(runtime).app()

    async def chunks(count: int) -> AsyncIterator[bytes]:
        for number in range(count):
            yield chunk("word ", "stop" if number == count - 1 else None)
            if count == LONG:
                await asyncio.sleep(seconds)
        yield b"data: [DONE]\n\n"

    async def chat(request: Request) -> Response:
        asked = await request.json()
        return StreamingResponse(chunks(int(asked["max_tokens"])), media_type="text/event-stream")

    app = Starlette(routes=[Route(PATH, chat, methods=["POST"]), *others.routes])
    listening = listen()
    ready.send(f"http://127.0.0.1:{listening.getsockname()[1]}")
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listening])


def body(model: str, tokens: int) -> bytes:
    """A request that only the target can follow."""
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": "How many?"}],
        "tools": [TOOL],
    }
    return json.dumps({**asked, "stream": True, "max_tokens": tokens}).encode()


def clients(ready: Connection, url: str, model: str, count: int) -> None:
    """Keeps ``count`` streams open at once and reads them."""

    async def read(session: aiohttp.ClientSession, open_now: asyncio.Semaphore) -> None:
        async with session.post(url + PATH, data=body(model, LONG), headers=JSON) as reply:
            reply.raise_for_status()
            async for _ in reply.content.iter_any():
                open_now.release()

    async def all_of_them() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            opened = [asyncio.Semaphore(0) for _ in range(count)]
            reading = [asyncio.create_task(read(session, one)) for one in opened]
            for one in opened:
                await one.acquire()
            ready.send("open")
            await asyncio.gather(*reading)

    with contextlib.suppress(KeyboardInterrupt, aiohttp.ClientError):
        asyncio.run(all_of_them())


JSON = {"Content-Type": "application/json"}


async def first_byte(session: aiohttp.ClientSession, url: str, asked: bytes) -> float:
    """Seconds from the request to the first byte of the answer's body, which is then read to its
    end.
    """
    began = time.perf_counter()
    async with session.post(url + PATH, data=asked, headers=JSON) as reply:
        await reply.content.readany()
        seconds = time.perf_counter() - began
        reply.raise_for_status()
        await reply.read()
    return seconds


async def in_turns(ways: Mapping[str, bytes], count: int, pause: float) -> list[list[float]]:
    """Sends ``count`` requests each way, one at a time and in turns."""
    found: list[list[float]] = [[] for _ in ways]
    async with aiohttp.ClientSession() as session:
        for _ in range(WARM + count):
            for seconds, (url, asked) in zip(found, ways.items(), strict=True):
                seconds.append(await first_byte(session, url, asked))
                await asyncio.sleep(pause)
    return [seconds[WARM:] for seconds in found]


@contextlib.contextmanager
def beside(work: object, *arguments: object):  # type: ignore[no-untyped-def]
    """Runs a function in a new process; yields its message when it is ready."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(theirs, *arguments))  # type: ignore[arg-type]
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def measure(streams: int, requests: int, seconds: float, pause: float = 0.005) -> Measured:
    """First bytes each way while streams are open through the endpoint.

    Args:
        seconds: between two chunks of an open stream.
        pause: after each request.
    """
    with (
        beside(upstream, seconds) as target,
        started("tests.simulated", "--role", "draft") as (simulated, _),
    ):
        attach = ("--target", target, "--draft", simulated["urls"]["draft"], "--verifier", "exact")
        options = ("--concurrency", streams + 2, "-o", "serve.log_level=error")
        with started("cli", "serve", "--json", "--port", 0, *attach, *options) as (told, pid):
            url, model = told["url"], told["model"]
            with beside(clients, url, model, streams) if streams else contextlib.nullcontext():
                before, began = cpu_of(pid), time.monotonic()
                ways = {target: body("simulated-target", SHORT), url: body(model, SHORT)}
                direct, through = asyncio.run(in_turns(ways, requests, pause))
                return Measured(
                    direct, through, (cpu_of(pid) - before) / (time.monotonic() - began)
                )


def main() -> None:
    """Prints the time that the endpoint adds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--streams", type=int, default=64, help="open through the endpoint meanwhile"
    )
    parser.add_argument("--requests", type=int, default=200, help="each way")
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="between two chunks of an open stream"
    )
    given = parser.parse_args()
    made = measure(given.streams, given.requests, given.seconds)
    click.echo(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {given}")
    click.echo("| | ms to the first byte, median | p10 | p90 |\n|-|-|-|-|")
    for name, found in (("direct", made.direct), ("endpoint", made.through)):
        tenths = statistics.quantiles(found, n=10)
        low, middle, high = (
            1000 * value for value in (tenths[0], statistics.median(found), tenths[-1])
        )
        click.echo(f"| {name} | {middle:.2f} | {low:.2f} | {high:.2f} |")
    click.echo(
        f"added {1000 * made.added:.2f} ms; the endpoint's process took {made.cpu_share:.0%} "
        "of a core"
    )


if __name__ == "__main__":
    main()
