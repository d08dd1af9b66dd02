"""Tokens per second of one SGLang server without a GPU, and of transformers beside it, with one
thread each.

    python benchmarks/cpu_decode.py MODEL [--dtype bfloat16] [--prompt 20 --prompt 1000] [--tokens
    200]

Both get the same prompts of random tokens, one at a time and eight at a time. On a machine with
other work, compare the second figure: tokens per second of processor time, of the scheduler's
process alone.

Every token reads all weights once. One line shows how fast one thread reads as many bytes in the
same run, and the share of that which one sequence reached. Another warns if other processes kept
the machine busy and spoilt the run.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import click
import psutil
import torch
from safetensors import safe_open

from lr_sglang.cpu import settings

EIGHT = 8
BUSY = 0.1  # cores that other processes may take


class Server:
    """A server that we started: its address and the processor time of its scheduler."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port = process, port

    def generate(self, prompt: list[int], tokens: int) -> list[int]:
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body = json.dumps({"input_ids": prompt, "sampling_params": sampling}).encode()
        url = f"http://127.0.0.1:{self.port}/generate"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)["output_ids"]

    def seconds_used(self) -> float:
        """Processor time of the scheduler: the child that has used most."""
        children = (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        )
        return max(
            sum(int(task.read_text().split()[0]) for task in _tasks(child)) / 1e9
            for child in children
        )


def _tasks(pid: str) -> Iterator[Path]:
    return Path(f"/proc/{pid}/task").glob("*/schedstat")


@contextmanager
def serve(model: str, flags: dict[str, object]) -> Iterator[Server]:
    """Start a server with our settings; stop it in the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [
        text for name, value in flags.items() for text in (f"--{name}", value) if text is not True
    ]
    command = [
        sys.executable,
        "-m",
        "lr_sglang.runtimes.launching.launcher",
        "--model-path",
        model,
        "--port",
        port,
        *arguments,
    ]
    process = subprocess.Popen(
        [str(part) for part in command],
        env=os.environ | settings.environment(),
        start_new_session=True,
    )
    server, began = Server(process, port), time.monotonic()
    try:
        while True:
            try:
                server.generate([5, 6, 7], 1)
                break
            except OSError as error:
                if process.poll() is not None or time.monotonic() - began > 300:
                    raise click.ClickException("the server did not start") from error
                time.sleep(0.2)
        click.echo(f"server: first answer after {time.monotonic() - began:.1f} s")
        yield server
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def best(
    work: Callable[[], None], clock: Callable[[], float], tokens: int, repeats: int = 3
) -> tuple[float, float]:
    """Tokens per second of the best of some runs: by the wall clock, and by `clock` in processor
    time.
    """
    wall, processor = [], []
    for _ in range(repeats):
        began, used = time.monotonic(), clock()
        work()
        wall.append(time.monotonic() - began)
        processor.append(clock() - used)
    return tokens / min(wall), tokens / min(processor)


def time_server(server: Server, prompts: list[list[int]], tokens: int) -> float:
    """Returns tokens per second of one sequence, by the wall clock."""
    for prompt in prompts:
        server.generate(prompt, 1)  # puts the prefix into the cache, so that only decoding is timed
    alone: list[list[int]] = []
    one = best(
        lambda: alone.append(server.generate(prompts[0], tokens)), server.seconds_used, tokens
    )
    with ThreadPoolExecutor(EIGHT) as pool:
        together: list[list[int]] = []

        def run() -> None:
            together[:] = pool.map(lambda prompt: server.generate(prompt, tokens), prompts)

        eight = best(run, server.seconds_used, EIGHT * tokens)
    report("server", len(prompts[0]), one, eight)
    if alone[0] != together[0]:
        click.echo("  tokens of one request differ alone and among eight")
    return one[0]


def weight_bytes(model: str, dtype: torch.dtype) -> int:
    """Bytes of the weights that every token reads: all but the embedding, unless that is the
    output's too.
    """
    config = json.loads((Path(model) / "config.json").read_text("utf-8"))
    count = 0
    for path in Path(model).glob("*.safetensors"):
        with safe_open(path, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no dict
                if config.get("tie_word_embeddings") or "embed_tokens" not in name:
                    count += math.prod(tensors.get_slice(name).get_shape())
    return count * dtype.itemsize


def memory_rate(size: int) -> float:
    """Bytes per second that one thread reads of memory of this size: the best of some runs."""
    memory, seconds = torch.ones(size // 8, dtype=torch.int64), []
    for _ in range(7):
        began = time.monotonic()
        memory.sum()
        seconds.append(time.monotonic() - began)
    return size / min(seconds)


class Others:
    """How many cores other processes keep busy, on average since this object was made."""

    def __init__(self, server: Server) -> None:
        self._pid, self._began, self._used = (
            server.process.pid,
            time.monotonic(),
            self._now(server.process.pid),
        )

    def cores(self) -> float:
        return (self._now(self._pid) - self._used) / (time.monotonic() - self._began)

    @staticmethod
    def _now(pid: int) -> float:
        spent = psutil.cpu_times()
        root = psutil.Process(pid)
        own = [one.cpu_times() for one in (psutil.Process(), root, *root.children(recursive=True))]
        return float(
            spent.user + spent.nice + spent.system - sum(one.user + one.system for one in own)
        )


def time_transformers(
    model: str, dtype: torch.dtype, lengths: tuple[int, ...], tokens: int
) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)

    def work(prompts: list[list[int]]) -> Callable[[], None]:
        ids = torch.tensor(prompts)
        settings = {
            "max_new_tokens": tokens,
            "min_new_tokens": tokens,
            "do_sample": False,
            "pad_token_id": 0,
        }
        return lambda: network.generate(ids, attention_mask=torch.ones_like(ids), **settings)

    with torch.inference_mode():
        for length in lengths:
            prompts = make_prompts(length)
            one = best(work(prompts[:1]), time.process_time, tokens)
            report(
                "transformers", length, one, best(work(prompts), time.process_time, EIGHT * tokens)
            )


def make_prompts(length: int) -> list[list[int]]:
    draw = random.Random(length)
    return [[draw.randrange(5, 500) for _ in range(length)] for _ in range(EIGHT)]


def report(who: str, length: int, one: tuple[float, float], eight: tuple[float, float]) -> None:
    click.echo(
        f"{who:<13} prompt of {length:>4}: one {one[0]:7.1f} tok/s (processor {one[1]:7.1f}), "
        f"eight {eight[0]:7.1f} tok/s (processor {eight[1]:7.1f}), step of eight / of one "
        f"{EIGHT * one[1] / eight[1]:.2f}"
    )


@click.command(help=__doc__)
@click.argument("model")
@click.option(
    "--prompt", "lengths", type=int, multiple=True, default=(20, 200), help="Tokens of a prompt."
)
@click.option("--tokens", default=200, help="Tokens to generate.")
@click.option(
    "--dtype", type=click.Choice(("float32", "bfloat16")), default="float32", help="Of both."
)
@click.option(
    "--flag",
    "extra",
    multiple=True,
    help="Another flag of the server: NAME or NAME=VALUE, without dashes.",
)
@click.option(
    "--transformers/--no-transformers", "beside", default=True, help="Time transformers too."
)
def main(
    model: str,
    lengths: tuple[int, ...],
    tokens: int,
    dtype: str,
    extra: tuple[str, ...],
    beside: bool,
) -> None:
    torch.set_num_threads(1)
    flags = settings.flags() | {"dtype": dtype}
    flags |= {name: value or True for name, _, value in (item.partition("=") for item in extra)}
    size = weight_bytes(model, getattr(torch, dtype))
    with serve(model, flags) as server:
        others, rate = Others(server), memory_rate(size)
        for length in lengths:
            fastest = time_server(server, make_prompts(length), tokens)
            click.echo(
                f"  {fastest * size / rate:.2f} of what memory gives: {size / 1e6:.0f} MB at "
                f"{rate / 1e9:.1f} GB/s"
            )
        if (busy := others.cores()) > BUSY:
            click.echo(f"  does not count: other processes took {busy:.1f} cores")
    if beside:
        time_transformers(model, getattr(torch, dtype), lengths, tokens)


if __name__ == "__main__":
    main()
