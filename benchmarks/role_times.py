"""Measures the times of each runtime of a deployment alone, while the others are idle.

    python -m benchmarks.role_times --deployment pocket --output times.json

If target, draft and judge share one GPU or two cores, they slow each other down, and lookahead
looks slower than with a GPU for each. So every runtime is measured alone: milliseconds of a token
when 1 to 98 answers are written at once, of a request that prefills 32 tokens after a cached
prefix, and of a verdict. Prompts are random tokens; token layers are off,
because their acceptance on random text means nothing.

The file is written after every figure, and figures that it has are not measured again.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from lr_sglang.sglang_api.light_import import leave_torch_out

leave_torch_out()

from lr_sglang.bench import servers  # noqa: E402
from lr_sglang.cli.settings import settle  # noqa: E402
from lr_sglang.config import ROLES, Deployment, TokenLayer  # noqa: E402
from lr_sglang.engine.loop import call  # noqa: E402
from lr_sglang.frontend.backend import RuntimeBackend  # noqa: E402
from lr_sglang.results import machine  # noqa: E402
from lr_sglang.runtimes import load_deployment  # noqa: E402
from lr_sglang.runtimes.connect import deployed  # noqa: E402
from lr_sglang.runtimes.placement import models  # noqa: E402
from lr_sglang.steps.branch import Request  # noqa: E402

# Tokens of two answers, whose difference is decoding alone, and of their prompts.
SHORT, LONG = 8, 40
PROMPT = 16
STEP = 32  # tokens of a step that is read
# Tokens of the judge's prompt: two steps, and what is before them.
VERDICT = 64
HEAD = 256
ROUNDS = 3  # of which the fastest counts


def random_ids(count: int) -> list[int]:
    """Token ids that all models have, pocket models too."""
    return [random.randrange(10, 700) for _ in range(count)]


def seconds(backend: RuntimeBackend, prompts: Sequence[list[int]], tokens: int) -> float:
    """Seconds until all requests, sent at once, have ended."""
    sampling = {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True}

    async def all_of_them() -> float:
        began = time.monotonic()
        asked = ({"input_ids": ids, "sampling_params": sampling} for ids in prompts)
        await asyncio.gather(*(backend.transport.generate(one, Request(), 300.0) for one in asked))
        return time.monotonic() - began

    return call(all_of_them(), backend.loop)


def token_ms(backend: RuntimeBackend, batch: int) -> float:
    """Milliseconds of a token of each of ``batch`` answers."""
    found = []
    for _ in range(ROUNDS):
        prompts = [random_ids(PROMPT) for _ in range(batch)]
        short, long = (seconds(backend, prompts, tokens) for tokens in (SHORT, LONG))
        found.append(1000 * (long - short) / (LONG - SHORT))
    return min(found)


def read_ms(backend: RuntimeBackend, prefix: int, new: int) -> float:
    """Milliseconds of a request that reads ``new`` tokens after a prefix in the cache, and writes
    one.
    """
    ids = random_ids(prefix)
    seconds(backend, [ids], 1)
    return min(1000 * seconds(backend, [ids + random_ids(new)], 1) for _ in range(ROUNDS))


def flagged(deployment: Deployment, given: Sequence[str]) -> Deployment:
    """A copy with flags of SGLang, such as ``disable-cuda-graph``, for all servers that are to be
    started.
    """
    found: dict[str, str | bool] = {}
    for text in given:
        name, equals, value = text.partition("=")
        found[name.lstrip("-")] = value if equals else True
    runtimes = {
        role: one if one.url else one.replace(extra={**one.extra, **found})
        for role, one in deployment.runtimes.items()
    }
    return deployment.replace(runtimes=runtimes)


def deployment_of(deployment: str, shapes: str, flags: Sequence[str]) -> Deployment:
    """The deployment without token layers, and with GPUs for every role that names none."""
    names = [models.SHAPE + name for name in shapes.split(",")] if shapes else []
    loaded = (
        settle(dict(zip(ROLES, names, strict=True))).deployment
        if names
        else load_deployment(deployment)
    )
    plain = {
        role: runtime.replace(token_layer=TokenLayer()) for role, runtime in loaded.runtimes.items()
    }
    return servers.placed_here(flagged(loaded.replace(runtimes=plain), flags))


@click.command(help=__doc__.split("\n\n")[0] if __doc__ else None)
@click.option("--deployment", default="pocket", show_default=True, help="A file or a preset.")
@click.option("--shapes", metavar="T,D,J", help="In its place: architectures with random weights.")
@click.option("--flag", multiple=True, metavar="NAME[=VALUE]", help="Of SGLang, for every server.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), required=True)
@click.option("--batches", default="1,2,4,8,16,32,98", show_default=True, help="Answers at once.")
@click.option(
    "--prefixes",
    default="1024,8192,32768",
    show_default=True,
    help="Tokens before a step that is read.",
)
def main(
    deployment: str, shapes: str, flag: tuple[str, ...], output: Path, batches: str, prefixes: str
) -> None:
    found: dict[str, Any] = json.loads(output.read_text("utf-8")) if output.exists() else {}
    found = {
        "deployment": shapes or deployment,
        "machine": machine.machine(),
        "step_tokens": STEP,
        "roles": {},
        **found,
    }

    def measure(role: str, name: str, figure: Callable[[], float]) -> None:
        figures = found["roles"].setdefault(role, {})
        if name not in figures:
            figures[name] = round(figure(), 3)
            output.write_text(json.dumps(found, indent=1), "utf-8")
        click.echo(f"{role}: {name} {figures[name]:.2f} ms")

    made = deployment_of(deployment, shapes, flag)
    with tempfile.TemporaryDirectory() as logs, deployed(made, Path(logs)) as roles:
        for role, backend in roles.items():
            most = backend.facts.max_running_requests or 1 << 20
            room = min(backend.facts.kv_tokens or 1 << 20, backend.facts.context)
            seconds(backend, [random_ids(PROMPT)], LONG)  # for warm-up
            if role == "judge":
                measure(role, "verdict", lambda one=backend: read_ms(one, HEAD, VERDICT))  # type: ignore[misc]
                continue
            left_out = [f"{one} at once" for one in batches.split(",") if int(one) > most]
            left_out += [f"{one} tokens" for one in prefixes.split(",") if int(one) + STEP >= room]
            if left_out:
                click.echo(f"{role}: has no room for {', '.join(left_out)}", err=True)
            for batch in (int(one) for one in batches.split(",") if int(one) <= most):
                measure(
                    role, f"token, {batch} at once", lambda one=backend, n=batch: token_ms(one, n)
                )  # type: ignore[misc]
            for prefix in (int(one) for one in prefixes.split(",") if int(one) + STEP < room):
                measure(
                    role,
                    f"read a step after {prefix}",
                    lambda one=backend, n=prefix: read_ms(one, n, STEP),
                )  # type: ignore[misc]


if __name__ == "__main__":
    main()
