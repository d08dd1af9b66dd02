"""Tokens per second of one SGLang server without a GPU, and of transformers beside it, with one thread each.

    python benchmarks/cpu_decode.py MODEL [--prompt 20 --prompt 1000] [--tokens 200] [--flag disable-radix-cache]

Both are given the same prompts of random tokens, one at a time and eight at a time. On a machine that does other
work too, compare the second figure: tokens per second of processor time, of the scheduler's process alone.
"""

from __future__ import annotations

import json
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

from lr_sglang.cpu import settings

EIGHT = 8


class Server:
    """A server of ours: its address and the processor time of its scheduler."""

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
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return max(sum(int(task.read_text().split()[0]) for task in _tasks(child)) / 1e9 for child in children)


def _tasks(pid: str) -> Iterator[Path]:
    return Path(f"/proc/{pid}/task").glob("*/schedstat")


@contextmanager
def serve(model: str, flags: dict[str, object]) -> Iterator[Server]:
    """Start a server with our settings; stop it in the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [text for name, value in flags.items() for text in (f"--{name}", value) if text is not True]
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
        [str(part) for part in command], env=os.environ | settings.environment(), start_new_session=True
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


def best(work: Callable[[], None], clock: Callable[[], float], tokens: int, repeats: int = 3) -> tuple[float, float]:
    """Tokens per second of the best of some runs: by the wall clock, and by `clock` in processor time."""
    wall, processor = [], []
    for _ in range(repeats):
        began, used = time.monotonic(), clock()
        work()
        wall.append(time.monotonic() - began)
        processor.append(clock() - used)
    return tokens / min(wall), tokens / min(processor)


def time_server(server: Server, prompts: list[list[int]], tokens: int) -> None:
    for prompt in prompts:
        server.generate(prompt, 1)  # its prefix is in the cache from here on: decoding is what we time
    alone: list[list[int]] = []
    one = best(lambda: alone.append(server.generate(prompts[0], tokens)), server.seconds_used, tokens)
    with ThreadPoolExecutor(EIGHT) as pool:
        together: list[list[int]] = []

        def run() -> None:
            together[:] = pool.map(lambda prompt: server.generate(prompt, tokens), prompts)

        eight = best(run, server.seconds_used, EIGHT * tokens)
    report("server", len(prompts[0]), one, eight)
    if alone[0] != together[0]:
        click.echo("  tokens of one request differ alone and among eight")


def time_transformers(model: str, lengths: tuple[int, ...], tokens: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def work(prompts: list[list[int]]) -> Callable[[], None]:
        ids = torch.tensor(prompts)
        settings = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        return lambda: network.generate(ids, attention_mask=torch.ones_like(ids), **settings)

    with torch.inference_mode():
        for length in lengths:
            prompts = make_prompts(length)
            one = best(work(prompts[:1]), time.process_time, tokens)
            report("transformers", length, one, best(work(prompts), time.process_time, EIGHT * tokens))


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
@click.option("--prompt", "lengths", type=int, multiple=True, default=(20, 200), help="Tokens of a prompt.")
@click.option("--tokens", default=200, help="Tokens to generate.")
@click.option("--flag", "extra", multiple=True, help="Another flag of the server: NAME or NAME=VALUE, without dashes.")
@click.option("--transformers/--no-transformers", "beside", default=True, help="Time transformers too.")
def main(model: str, lengths: tuple[int, ...], tokens: int, extra: tuple[str, ...], beside: bool) -> None:
    flags = settings.flags() | {name: value or True for name, _, value in (item.partition("=") for item in extra)}
    with serve(model, flags) as server:
        for length in lengths:
            time_server(server, make_prompts(length), tokens)
    if beside:
        time_transformers(model, lengths, tokens)


if __name__ == "__main__":
    main()
