"""Measures what log-probabilities add to the time in which a target reads drafted tokens.

    python -m benchmarks.read_cost dummy:qwen3-0.6b pocket:target@qwen3-0.6b

A server of each model, which differ in the vocabulary alone (151,936 tokens of Qwen3, and those of
the pocket models), reads 3, 12 and 24 random tokens after 300 that it has in its cache, and writes
one: without log-probabilities, and with those of the 2, 20 and 48 most probable tokens of each
place. Times are medians; the requests take turns. Also the size of the reply, and the milliseconds
in which the client parses it and draws from it.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import orjson

from lr_sglang.sglang_api.light_import import leave_torch_out

leave_torch_out()

from benchmarks.role_times import random_ids  # noqa: E402
from lr_sglang.algorithm.reader import target_draws  # noqa: E402
from lr_sglang.config import Deployment, Runtime, Sampling  # noqa: E402
from lr_sglang.engine.loop import call  # noqa: E402
from lr_sglang.frontend.backend import RuntimeBackend  # noqa: E402
from lr_sglang.runtimes.connect import deployed  # noqa: E402
from lr_sglang.steps.branch import Request  # noqa: E402

PREFIX, READ, TOP = 300, (3, 12, 24), (0, 2, 20, 48)  # tokens
SAMPLING = Sampling(0.6, 0.95)


def milliseconds(began: float) -> float:
    return 1000 * (time.perf_counter() - began)


def read(
    backend: RuntimeBackend, prefix: list[int], tokens: int, top: int
) -> tuple[float, float, float, float]:
    """Milliseconds of one request; KB of its reply; milliseconds to parse it and to draw from
    it.
    """
    payload: dict[str, Any] = {
        "input_ids": prefix + random_ids(tokens),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.6, "ignore_eos": True},
    }
    if top:
        more = {"logprob_start_len": PREFIX - 1, "top_logprobs_num": top}
        payload |= {"return_logprob": True} | more
    began = time.perf_counter()
    reply = call(backend.transport.generate(payload, Request(), 300.0), backend.loop)
    whole, text = milliseconds(began), orjson.dumps(reply)
    began = time.perf_counter()
    orjson.loads(text)
    parsed, began = milliseconds(began), time.perf_counter()
    rows = [row for row in reply["meta_info"].get("input_top_logprobs") or () if row]
    target_draws(rows[-tokens:], SAMPLING, 1, 0)
    return whole, len(text) / 1000, parsed, milliseconds(began)


def lines(backend: RuntimeBackend, rounds: int) -> Iterator[str]:
    """The medians of each number of tokens that are read, after one round for warm-up."""
    cases, prefix = [(tokens, top) for tokens in READ for top in TOP], random_ids(PREFIX)
    found: dict[tuple[int, int], list[tuple[float, float, float, float]]] = {}
    for number in range(rounds + 1):
        for tokens, top in random.sample(cases, len(cases)):
            figures = read(backend, prefix, tokens, top)
            if number:
                found.setdefault((tokens, top), []).append(figures)
    for tokens, top in cases:
        columns = zip(*found[tokens, top], strict=True)
        whole, size, parsed, draws = (statistics.median(column) for column in columns)
        yield (
            f"{tokens:4} tokens, {top:2} log-probabilities: {whole:6.1f} ms, {size:5.1f} KB; "
            f"parsed in {parsed:.2f} ms, drawn in {draws:.2f} ms"
        )


@click.command(help=__doc__.split("\n\n")[0] if __doc__ else None)
@click.argument("models", nargs=-1, required=True)
@click.option("--rounds", default=9, show_default=True, help="Of which the median counts.")
@click.option("--dtype", default="bfloat16", show_default=True)
def main(models: tuple[str, ...], rounds: int, dtype: str) -> None:
    for model in models:
        click.echo(model)
        made = Deployment("read-cost", {"target": Runtime(model=model, dtype=dtype)})
        with tempfile.TemporaryDirectory() as logs, deployed(made, Path(logs)) as roles:
            for line in lines(roles["target"], rounds):
                click.echo(line)


if __name__ == "__main__":
    main()
