"""Compares the endpoint's speed with the library's: the same questions both ways, on the same
runtimes.

    python -m benchmarks.serve_against_run                          # the pocket models, 40
    questions: four minutes python -m benchmarks.serve_against_run pocket-body --questions 10

``lr-sglang launch`` and ``lr-sglang serve --attach`` run with their defaults. Each question is
answered by the endpoint, streamed, and by this process, as ``lr-sglang run --attach`` does it; the
first way changes from question to question. The seeds are the same, and all caches are emptied
before each answer. Times end with the last byte, or with the record; ratios are the endpoint's over
the library's, with 95 % intervals (Student's t, of logs). In plain decoding the texts differ,
because the endpoint sends a request for each step, and the library one for the whole answer.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import httpx
from scipy import stats

from benchmarks.endpoint import ROOT, started
from lr_sglang import tasks
from lr_sglang.api.runner import Runner
from lr_sglang.bench.servers import Caches
from lr_sglang.cli.settings import settle
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes import launched
from lr_sglang.runtimes.connect import deployed
from lr_sglang.tasks.question import plan

MODES = ("lookahead", "autoregressive")


@dataclass
class Answer:
    """An answer of one way; events are those of ``lookahead.trace``."""

    seconds: float
    text: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def overlapping(self) -> int:
        """The largest number of target branches in flight at once."""
        running, most = set[int](), 0
        for event in self.events:
            if event["kind"] == "begun" and event["role"] == "target":
                running.add(event["prefix"])
            elif event["kind"] in ("written", "dropped"):  # with a node, the branch after it ends
                running.discard(event.get("node", event["prefix"]))
            most = max(most, len(running))
        return most


@contextmanager
def kept_up(deployment: str) -> Iterator[str]:
    """Keeps a deployment up by ``lr-sglang launch``; yields its name."""
    name, command = (
        "serve-against-run",
        [sys.executable, str(ROOT / "cli.py"), "launch", deployment, "--quiet"],
    )
    with subprocess.Popen([*command, "--name", name]) as process:
        try:
            while True:
                try:
                    launched.find(name)
                    break
                except ConfigError:  # not up yet
                    if process.poll() is not None:
                        sys.exit(f"{deployment}: its servers did not start")
                    time.sleep(0.2)
            yield name
        finally:
            process.terminate()


def by_endpoint(
    client: httpx.Client, model: str, question: tasks.Question, mode: str, trace: bool = False
) -> Answer:
    """An answer of the endpoint, as a client receives it."""
    asked = [{"role": "user", "content": question.question}]
    body = {
        "model": model,
        "messages": asked,
        "stream": True,
        "seed": 0,
        "lookahead": {"mode": mode, "trace": trace},
    }
    began = time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        lines = list(reply.iter_lines())
    seconds = time.perf_counter() - began
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    text = "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]
    )
    return Answer(
        seconds, text, [e for chunk in chunks if (e := chunk.get("lookahead", {}).get("event"))]
    )


def by_library(runner: Runner, question: tasks.Question, mode: str) -> Answer:
    """An answer as by ``lr-sglang run``. Without an id the seeds are those of the endpoint."""
    began = time.perf_counter()
    (record,) = runner.run(plan([replace(question, id="")], [mode]))
    return Answer(time.perf_counter() - began, record["text"])


def ratio(pairs: Sequence[tuple[Answer, Answer]]) -> str:
    """The geometric mean of the endpoint's seconds over the library's, with its interval."""
    logs = [math.log(one.seconds / other.seconds) for one, other in pairs]
    width = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.exp(statistics.mean(logs) + apart) for apart in (-width, 0.0, width))
    return f"{middle:.3f} | {low:.3f} to {high:.3f}"


@click.command(help=__doc__.split("\n\n")[0] if __doc__ else None)
@click.argument("deployment", default="pocket")
@click.option("--task", default="pocket", show_default=True)
@click.option("--questions", default=40, show_default=True)
def main(deployment: str, task: str, questions: int) -> None:
    asked = tasks.load(task, limit=questions + 1)
    found: dict[str, list[tuple[Answer, Answer]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_STATE_HOME"] = scratch  # keeps these deployments apart from the user's own
        with (
            kept_up(deployment) as name,
            started("serve", "--attach", name, "--port", 0) as (told, _),
        ):
            settled = settle({"attach": name, "mode": MODES}).checked()
            with (
                deployed(settled.needed(MODES), Path(scratch)) as roles,
                Runner(roles, settled) as runner,
                httpx.Client(base_url=told["url"], timeout=600) as client,
            ):
                caches = Caches(lambda text: click.echo(text, err=True))
                most = by_endpoint(
                    client, told["model"], asked[0], "lookahead", trace=True
                ).overlapping()
                for number, question in enumerate(asked):
                    for mode in MODES:
                        answers: dict[str, Answer] = {}
                        for way in sorted(("endpoint", "library"), reverse=number % 2 == 1):
                            caches.empty(roles)
                            if way == "library":
                                answers[way] = by_library(runner, question, mode)
                            else:
                                answers[way] = by_endpoint(client, told["model"], question, mode)
                        if number:  # the first is for warm-up
                            found[mode].append((answers["endpoint"], answers["library"]))
    click.echo(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; at most {most} branches of "
        "the target at once"
    )
    click.echo("| mode | endpoint, s | library, s | ratio | 95 % | same text |\n|-|-|-|-|-|-|")
    for mode, pairs in found.items():
        each = [f"{statistics.mean(pair[way].seconds for pair in pairs):.3f}" for way in (0, 1)]
        same = sum(one.text == other.text for one, other in pairs)
        click.echo(f"| {mode} | {' | '.join(each)} | {ratio(pairs)} | {same} of {len(pairs)} |")


if __name__ == "__main__":
    main()
