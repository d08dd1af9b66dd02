"""Counts what a server finds again of prompts that are forked as lookahead forks them: of plain
attention, and of a hybrid, which keeps its states at some places of a prompt only.

    python benchmarks/hybrid.py --times

``plain`` is the pocket target. The hybrid has random weights, on a server without a GPU, whose
strategy is ``no_buffer``: in chunks of 64 tokens, as we start it, and with prompts in one chunk.
``extra_buffer``, SGLang's strategy on GPUs, is predicted by its rule (``ExtraBuffer``). Every row starts with an empty cache. A row with ``asked once`` first asks the
prefix that is forked afterwards; ``--times`` measures what that costs and gains.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import click

from lr_sglang.config import Deployment, Runtime
from lr_sglang.engine.loop import call
from lr_sglang.engine.prefix_reuse import common_prefix
from lr_sglang.engine.request import Request
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.runtimes.connect import deployed
from lr_sglang.runtimes.placement.hybrid import GRID

PROMPT, STEP, WRITTEN = 300, 14, 30  # tokens
HEAD, PAIR = 150, 60  # of a judge's prompt: what all share, and two steps
ROUNDS = 9
SERVERS = ("plain", "no_buffer", "no_buffer, one chunk", "extra_buffer")
Ids = list[int]


class Served(Protocol):
    """A server, or the rule that predicts one."""

    def ask(self, *prompts: Ids, count: int = WRITTEN) -> list[int]:
        """Asks all at once; gives how many tokens of each were cached."""

    def flush(self) -> None: ...


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
        self.backend.flush_cache()


@dataclass
class ExtraBuffer:
    """Where SGLang 0.5.23 keeps states with ``extra_buffer``, read in its
    ``_mamba_radix_cache_v2_req_prepare_for_extend`` and ``finalize_match_result_in_tree_core``: a
    prompt leaves one state, 64 tokens or a multiple after the state that it began with, or where
    it parted from what is cached; an answer leaves one at its last multiple of 64.
    """

    asked: list[Ids] = field(default_factory=list)
    states: list[Ids] = field(default_factory=list)

    def ask(self, *prompts: Ids, count: int = WRITTEN) -> list[int]:
        found = [self._match(ids) for ids in prompts]
        for ids, (cached, known) in zip(prompts, found, strict=True):
            end = cached + (len(ids) - cached) // GRID * GRID
            parted = known // GRID * GRID
            self.states.append(ids[: parted if cached < parted < end else end])
            whole = ids + words(count - 1)  # the last token that is written is not computed
            if (last := len(whole) // GRID * GRID) > len(ids):
                self.states.append(whole[:last])
            self.asked.append(whole)
        return [cached for cached, _ in found]

    def _match(self, ids: Ids) -> tuple[int, int]:
        """Tokens up to the last state that helps, and up to where keys and values are there."""
        known = max((common_prefix(ids[:-1], one) for one in self.asked), default=0)
        fitting = (len(s) for s in self.states if len(s) <= known and ids[: len(s)] == s)
        return max(fitting, default=0), known

    def flush(self) -> None:
        self.asked.clear()
        self.states.clear()


draw = random.Random(1)


def words(count: int) -> Ids:
    return [draw.randrange(3, 800) for _ in range(count)]


def chain(first: Ids) -> list[Ids]:
    """Eight branches, each a step longer."""
    made = [first]
    for _ in range(8):
        made.append(made[-1] + words(STEP))
    return made[1:]


def one_after_another(served: Served) -> list[int]:
    first = words(PROMPT)
    served.ask(first)
    return [served.ask(ids)[0] for ids in chain(first)]


def at_once(served: Served) -> list[int]:
    first = words(PROMPT)
    served.ask(first)
    return served.ask(*chain(first))[-1:]


def forked(
    shared: int, own: int, others: int, asked: int = 0, whole: bool = False
) -> Callable[[Served], list[int]]:
    """Prompts that share some tokens, one after another; the first is not counted.

    Args:
        asked: of the shared tokens, so many are asked once before all.
        whole: the first prompt goes on for so many tokens as a whole prompt has.
    """

    def row(served: Served) -> list[int]:
        head = words(shared)
        if asked:
            served.ask(head[:asked], count=1)
        served.ask(head + words(PROMPT - shared if whole else own))
        return [served.ask(head + words(own))[0] for _ in range(others)]

    return row


ROWS: dict[str, Callable[[Served], list[int]]] = {
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


def counted(served: Served) -> dict[str, list[int]]:
    made = {}
    for name, row in ROWS.items():
        served.flush()
        made[name] = row(served)
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
        command = [sys.executable, "-m", "tests.hybrid", "make", folder]
        subprocess.run(command, check=True, capture_output=True)
        targets = {
            "plain": Runtime(model="pocket:target"),
            "no_buffer": Runtime(model=folder),
            "no_buffer, one chunk": Runtime(model=folder, extra={"chunked-prefill-size": 4096}),
        }
        for name in names or SERVERS:
            if name == "extra_buffer":
                click.echo(json.dumps({name: counted(ExtraBuffer())}))
                continue
            with started(targets[name]) as server:
                found = {name: counted(server), "ms": timed(server) if times else None}
                click.echo(json.dumps(found))


if __name__ == "__main__":
    main()
