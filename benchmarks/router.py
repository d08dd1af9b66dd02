"""Measures prefix reuse under SGLang's routing policies: how well branches of one question find
their shared prefix.

    python benchmarks/router.py --questions 24 --concurrency 4 --json router.json

Pocket models on two target workers behind a real router, with the exact verifier at temperature 0;
every policy answers the same questions with empty caches and a fresh router, in rounds that take
turns. ``one worker`` is the first of them alone, without a router. ``reuse`` is cached tokens over
tokens shared with an earlier request of the role, on whichever worker; ``computed`` are the prompt
tokens that were not cached, per answer; ``busier`` is the busier worker's share of the requests.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import urllib3

from lr_sglang import tasks, verifiers
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Deployment, Limits, Lookahead, Runtime, Sampling
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.runtimes import launch, load_deployment
from lr_sglang.runtimes.connect import deployed
from lr_sglang.runtimes.launching.server import Reservation
from lr_sglang.steps.trace import Trace

ALONE = "one worker"
POLICIES: dict[str, tuple[str, ...]] = {
    "round_robin": (),
    "random": (),
    "power_of_two": (),
    "cache_aware": (),
    "manual": ("--assignment-mode", "random"),
    "manual, min_load": ("--assignment-mode", "min_load"),
}
Roles = dict[str, RuntimeBackend]
_pool = urllib3.PoolManager(retries=False)


@contextmanager
def router(policy: str, workers: Sequence[str], log: Path) -> Iterator[str]:
    """SGLang's router with a policy, once it has found its workers."""
    front, metrics = Reservation(), Reservation()
    url = f"http://127.0.0.1:{front.port}"
    command = [
        sys.executable,
        "-m",
        "sglang_router.launch_router",
        "--host",
        "127.0.0.1",
        "--port",
        str(front.port),
    ]
    command += [
        "--prometheus-host",
        "127.0.0.1",
        "--prometheus-port",
        str(metrics.port),
        "--log-level",
        "warn",
    ]
    command += ["--worker-urls", *workers, "--policy", policy.split(",")[0], *POLICIES[policy]]
    front.release()
    metrics.release()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while not _ready(url, len(workers)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise click.ClickException(log.read_text())
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


def _ready(url: str, workers: int) -> bool:
    try:
        listed = _pool.request("GET", f"{url}/workers", timeout=5).json()["workers"]
        return [one["is_healthy"] for one in listed] == [True] * workers
    except urllib3.exceptions.HTTPError:
        return False


@contextmanager
def behind(policy: str, workers: Sequence[str], draft: Runtime, logs: Path) -> Iterator[Roles]:
    """The target behind a router with a policy, or its first worker alone."""
    with ExitStack() as stack:
        url = (
            workers[0]
            if policy == ALONE
            else stack.enter_context(router(policy, workers, logs / "router.log"))
        )
        with deployed(
            Deployment(policy, {"target": Runtime(url=url), "draft": draft}), logs
        ) as roles:
            yield roles


def served(worker: str) -> float:
    """Requests that a worker has ended."""
    lines = _pool.request("GET", f"{worker}/metrics", timeout=10).data.decode().splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("sglang:num_requests_total")
    )


def answer(question: tasks.Question, roles: Roles) -> Trace:
    """One question."""
    judge = verifiers.make_verifier("exact", verifiers.Setup(roles, "pocket"))
    request = AnswerRequest(
        Lookahead(verifier="exact"),
        Sampling(temperature=0.0),
        Limits(max_tokens=400),
        judge,
        question.id,
    )
    lookahead.run(
        [{"role": "user", "content": question.question}], request, backend=roles["target"]
    )
    return request.trace


def round_of(
    questions: Sequence[tasks.Question], roles: Roles, concurrency: int, workers: Sequence[str]
) -> Any:
    """All questions once, from empty caches: traces, seconds, and what each worker served."""
    for worker in workers:
        _pool.request("POST", f"{worker}/flush_cache", timeout=30)
    roles["draft"].flush_cache()
    before, began = [served(worker) for worker in workers], time.monotonic()
    with ThreadPoolExecutor(concurrency) as pool:
        traces = list(pool.map(lambda question: answer(question, roles), questions))
    seconds = time.monotonic() - began
    return (
        traces,
        seconds,
        [after - then for after, then in zip(map(served, workers), before, strict=True)],
    )


def figures(rounds: Sequence[Any]) -> dict[str, float]:
    """The figures of one policy."""
    traces = [trace for made, _, _ in rounds for trace in made]
    tokens = [trace.tokens()["target"] for trace in traces]
    each = [sum(counts) for counts in zip(*(requests for _, _, requests in rounds), strict=True)]
    prompt, cached, shareable, reused = (
        sum(t[name] for t in tokens) for name in ("prompt", "cached", "shareable", "reused")
    )
    return {
        "answers": len(traces),
        "reuse": reused / shareable,
        "computed": (prompt - cached) / len(traces),
        "busier": max(each) / sum(each),
        "tokens_per_second": sum(len(t.ids) for t in traces)
        / sum(seconds for _, seconds, _ in rounds),
    }


@click.command(help=__doc__.split("\n\n")[0] if __doc__ else None)
@click.option("--questions", default=24, show_default=True)
@click.option("--concurrency", default=4, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option(
    "--json", "output", type=click.Path(path_type=Path), help="Also write the figures here."
)
def main(questions: int, concurrency: int, rounds: int, output: Path | None) -> None:
    pocket = load_deployment("pocket")
    chosen = tasks.load("pocket", limit=questions)
    target = pocket.runtimes["target"].replace(extra={"enable-metrics": True})
    made: dict[str, list[Any]] = {}
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        first = stack.enter_context(
            launch(
                Deployment("first", {"target": target, "draft": pocket.runtimes["draft"]}),
                logs / "first",
            )
        )
        second = stack.enter_context(
            launch(Deployment("second", {"target": target}), logs / "second")
        )
        workers, draft = (
            [first.urls["target"], second.urls["target"]],
            Runtime(url=first.urls["draft"]),
        )
        with behind(ALONE, workers, draft, logs) as roles:
            round_of(chosen[:concurrency], roles, concurrency, workers)  # for warm-up
        order = [ALONE, *POLICIES]
        for number in range(rounds):
            for policy in order[number:] + order[:number]:
                with behind(policy, workers, draft, logs) as roles:
                    made.setdefault(policy, []).append(
                        round_of(chosen, roles, concurrency, workers)
                    )
    table = {policy: figures(made[policy]) for policy in order}
    for policy, row in table.items():
        click.echo(f"{policy:18}" + "  ".join(f"{key} {value:.3f}" for key, value in row.items()))
    if output:
        output.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
