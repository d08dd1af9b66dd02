"""Measures the time to the first token, and of the whole answer, in every mode of an endpoint and
of its target alone.

    lr-sglang serve --deployment pocket-body --port 8080      # prints the target's URL
    python -m benchmarks.first_token http://127.0.0.1:8080 http://127.0.0.1:PORT --limit 8

Each question is asked of all in turns, in another order each time and with an empty cache of the
target, one request at a time. Needs aiohttp, which the package needs.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time

import aiohttp
import click

from lr_sglang import tasks

TARGET = "target alone"


async def ask(
    session: aiohttp.ClientSession, url: str, model: str, text: str, mode: str
) -> tuple[float, float]:
    """Seconds to the first text, and to the end, of one streamed answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "temperature": 0.6,
        "max_tokens": 512,
        "seed": 3,
    }
    if mode != TARGET:
        body["lookahead"] = {"mode": mode}
    began, first = time.perf_counter(), 0.0
    async with session.post(url + "/v1/chat/completions", json=body) as reply:
        if reply.status != 200:
            raise click.ClickException(f"{url}: {reply.status} {await reply.text()}")
        async for line in reply.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise click.ClickException(str(chunk["error"]))
            for choice in chunk["choices"]:
                delta = choice["delta"]
                if not first and (delta.get("content") or delta.get("reasoning_content")):
                    first = time.perf_counter() - began
    return first, time.perf_counter() - began


def rotated(modes: list[str], by: int) -> list[str]:
    """Another one first."""
    by %= len(modes)
    return modes[by:] + modes[:by]


async def measure(endpoint: str, target: str, task: str, limit: int) -> None:
    """Asks, and prints the medians."""
    questions = tasks.load(task, limit=limit)
    async with aiohttp.ClientSession() as session:
        models = {}
        for url in (endpoint, target):
            async with session.get(url + "/v1/models") as reply:
                models[url] = (await reply.json())["data"][0]
        modes = models[endpoint]["lookahead"]["modes"]
        found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in (TARGET, *modes)}
        for number, question in enumerate(questions):
            for mode in rotated(list(found), number):
                # it waits for branches of the answer before, which were aborted at its end
                async with session.post(target + "/flush_cache?timeout=10") as reply:
                    if reply.status != 200:
                        raise click.ClickException(f"{target}/flush_cache: {reply.status}")
                url = target if mode == TARGET else endpoint
                name = models[url]["id"]
                found[mode].append(await ask(session, url, name, question.question, mode))
            click.echo(f"{number + 1} of {len(questions)}", err=True)
    for mode, times in found.items():
        first, whole = (statistics.median(column) for column in zip(*times, strict=True))
        click.echo(f"{mode:16} first token {first * 1000:7.0f} ms   whole {whole:6.2f} s")


@click.command()
@click.argument("endpoint")
@click.argument("target")
@click.option("--task", default="pocket", show_default=True)
@click.option("--limit", default=8, show_default=True)
def main(endpoint: str, target: str, task: str, limit: int) -> None:
    """Compares ENDPOINT and TARGET, both base URLs."""
    asyncio.run(measure(endpoint, target, task, limit))


if __name__ == "__main__":
    main()
