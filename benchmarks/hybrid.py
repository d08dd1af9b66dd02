"""Counts what a server finds again of prompts that are forked as lookahead forks them: of plain
attention, and of a hybrid, which keeps its states at some places of a prompt only.

    python -m benchmarks.hybrid --times

``plain`` is the pocket target. The hybrid has random weights, on a server without a GPU. With the
strategy ``no_buffer`` it runs in chunks of 64 tokens, as we start it, and with prompts in one chunk;
with ``extra_buffer``, SGLang's strategy on GPUs, as we start it there. Every row starts with an
empty cache. A row with ``asked once`` first asks the prefix that is forked afterwards; ``--times``
measures what that costs and gains.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from lr_sglang.bench.servers import Caches
from lr_sglang.config import Deployment, Runtime
from lr_sglang.engine.loop import call
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.runtimes.connect import deployed
from lr_sglang.runtimes.placement.hybrid import COPIES, STRATEGY
from lr_sglang.steps.branch import Request

PROMPT, STEP, WRITTEN = 300, 14, 30  # tokens
HEAD, PAIR = 150, 60  # of a judge's prompt: what all share, and two steps
ROUNDS = 9
SERVERS = ("plain", "no_buffer", "no_buffer, one chunk", "extra_buffer")
REQUESTS = 32  # that a server runs at a time
ONE_CHUNK = {"chunked-prefill-size": 4096}
EXTRA_BUFFER = {
    "mamba-radix-cache-strategy": "extra_buffer",
    **STRATEGY["cuda"],
    "max-mamba-cache-size": COPIES["cuda"] * REQUESTS,
}
Ids = list[int]


@dataclass
class Server:
    """A real server."""

    backend: RuntimeBackend

    def ask(self, *prompts: Ids, count: int = WRITTEN) -> list[int]:
        def one(ids: Ids) -> int:
            params = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
            body = {"input_ids": ids, "sampling_params": params}
            reply = call(self.backend.transport.generate(body, Request(), 120), self.backend.loop)
            return int(reply["meta_info"]["cached_tokens"])

        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(one, prompts))

    def flush(self) -> None:
        Caches(click.echo).empty({"target": self.backend})


draw = random.Random(1)


def words(count: int) -> Ids:
    return [draw.randrange(3, 800) for _ in range(count)]


def chain(first: Ids) -> list[Ids]:
    """Eight branches, each a step longer."""
    made = [first]
    for _ in range(8):
        made.append(made[-1] + words(STEP))
    return made[1:]


def one_after_another(server: Server) -> list[int]:
    first = words(PROMPT)
    server.ask(first)
    return [server.ask(ids)[0] for ids in chain(first)]


def at_once(server: Server) -> list[int]:
    first = words(PROMPT)
    server.ask(first)
    return server.ask(*chain(first))[-1:]


def forked(
    shared: int, own: int, others: int, asked: int = 0, whole: bool = False
) -> Callable[[Server], list[int]]:
    """Prompts that share some tokens, one after another; the first is not counted.

    Args:
        asked: of the shared tokens, so many are asked once before all.
        whole: the first prompt goes on for so many tokens as a whole prompt has.
    """

    def row(server: Server) -> list[int]:
        head = words(shared)
        if asked:
            server.ask(head[:asked], count=1)
        server.ask(head + words(PROMPT - shared if whole else own))
        return [server.ask(head + words(own))[0] for _ in range(others)]

    return row


ROWS: dict[str, Callable[[Server], list[int]]] = {
    "a chain of branches, prompts of 314 to 412": one_after_another,
    "eight at once, the last one (412)": at_once,
    "two branches (314) after a prompt that nobody asked, the second": forked(PROMPT, STEP, 1),
    "two branches, the prompt asked once": forked(PROMPT, STEP, 1, asked=PROMPT),
    "after 200 of an earlier prompt: first, later": forked(200, STEP, 2, whole=True),
    "samples of one question (300): second, later": forked(PROMPT, 0, 2),
    "samples, all but the last token asked once": forked(PROMPT, 0, 2, asked=PROMPT - 1),
    "verdicts (210) after a head of 150: second, later": forked(HEAD, PAIR, 2),
    "verdicts, the head asked once": forked(HEAD, PAIR, 2, asked=HEAD),
}


def counted(server: Server) -> dict[str, list[int]]:
    made = {}
    for name, row in ROWS.items():
        server.flush()
        made[name] = row(server)
    return made


def timed(server: Server) -> dict[str, float]:
    """Median milliseconds to the first token of all, and with the prefix asked once before, that
    request's time included: four samples of a question; then of one verdict more.
    """
    seconds: dict[str, list[float]] = {}

    def took(name: str, *asks: Sequence[Ids]) -> None:
        begun = time.perf_counter()
        for prompts in asks:
            server.ask(*prompts, count=1)
        seconds.setdefault(name, []).append(time.perf_counter() - begun)

    for _ in range(ROUNDS):
        first, second = words(PROMPT), words(PROMPT)
        took("four samples", [first] * 4)
        took("four samples, asked once", [second[:-1]], [second] * 4)
        first, second = words(HEAD), words(HEAD)
        for _ in range(2):
            server.ask(first + words(PAIR), count=1)
        server.ask(second, count=1)
        took("a verdict", [first + words(PAIR)])
        took("a verdict, asked once", [second + words(PAIR)])
    return {name: 1000 * statistics.median(all_of) for name, all_of in seconds.items()}


@contextmanager
def started(target: Runtime) -> Iterator[Server]:
    with (
        tempfile.TemporaryDirectory() as logs,
        deployed(Deployment("reuse", {"target": target}), Path(logs)) as roles,
    ):
        yield Server(roles["target"])


@click.command()
@click.option("--server", "names", type=click.Choice(SERVERS), multiple=True, help="Only this one.")
@click.option("--times", is_flag=True, help="Also measure milliseconds.")
def main(names: Sequence[str], times: bool) -> None:
    """Count cached tokens of forked prompts; one line of JSON for each server."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.hybrid", "make", folder, "qwen3_5_text"]
        subprocess.run(command, check=True, capture_output=True)
        targets = {
            "plain": Runtime(model="pocket:target"),
            "no_buffer": Runtime(model=folder),
            "no_buffer, one chunk": Runtime(model=folder, extra=ONE_CHUNK),
            "extra_buffer": Runtime(model=folder, extra=ONE_CHUNK | EXTRA_BUFFER),
        }
        for name in names or SERVERS:
            with started(targets[name]) as server:
                found = {name: counted(server), "ms": timed(server) if times else None}
                click.echo(json.dumps(found))


if __name__ == "__main__":
    main()
