"""Two real target workers behind SGLang's own router. One of them is the session's, the other is
started here.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import urllib3

from lr_sglang import tasks
from lr_sglang.config import Deployment
from lr_sglang.engine.router import RouterClient
from lr_sglang.errors import LookaheadError
from lr_sglang.runtimes import launch, load_deployment
from lr_sglang.runtimes.connect import connected
from lr_sglang.runtimes.launching.server import Reservation, Server
from lr_sglang.steps.branch import Request
from lr_sglang.steps.trace import Trace
from tests import FULL
from tests.called import called
from tests.e2e.conftest import Pocket, answer, assert_complete
from tests.serving import in_flight, until, until_idle

pytestmark = pytest.mark.skipif(not FULL, reason="minutes: only in test-full")
QUESTIONS = tasks.load("pocket", limit=20)
_pool = urllib3.PoolManager(retries=False)


@contextmanager
def router(policy: Sequence[str], workers: Sequence[str], log: Path) -> Iterator[str]:
    """SGLang's router with a policy and its options, once it has found its workers."""
    front, metrics = Reservation(), Reservation()
    url = f"http://127.0.0.1:{front.port}"
    command = [sys.executable, "-m", "sglang_router.launch_router", "--log-level", "warn"]
    command += ["--host", "127.0.0.1", "--port", str(front.port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics.port)]
    command += ["--worker-urls", *workers, "--policy", *policy]
    front.release()
    metrics.release()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while not _ready(url, len(workers)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(log.read_text())
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


@dataclass
class Routed:
    """A deployment whose target is a router."""

    pocket: Pocket
    url: str
    workers: list[str]
    second: Server
    file: Path

    @property
    def transport(self) -> RouterClient:
        transport = self.pocket.roles["target"].transport
        assert isinstance(transport, RouterClient)
        return transport


def passed_on(router: str, worker: str) -> int:
    """Requests that the router has with a worker."""
    listed = _pool.request("GET", f"{router}/workers", timeout=10).json()["workers"]
    return sum(one["load"] for one in listed if one["url"] == worker)


def served(worker: str) -> float:
    """Requests that a worker has ended."""
    lines = _pool.request("GET", f"{worker}/metrics", timeout=10).data.decode().splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("sglang:num_requests_total")
    )


@pytest.fixture(scope="module")
def routed(pocket: Pocket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    logs = tmp_path_factory.mktemp("router")
    alone = Deployment("second", {"target": pocket.fleet.deployment.runtimes["target"]})
    with launch(alone, logs) as second:
        workers = [pocket.fleet.urls["target"], second.urls["target"]]
        with router(
            ("manual", "--assignment-mode", "min_load"), workers, logs / "router.log"
        ) as url:
            file = logs / "routed.toml"
            urls = {"target": url, "draft": pocket.fleet.urls["draft"]}
            file.write_text(
                "".join(f'[runtimes.{role}]\nurl = "{at}"\n' for role, at in urls.items())
            )
            with launch(load_deployment(str(file)), logs) as fleet, connected(fleet) as roles:
                yield Routed(Pocket(roles, fleet), url, workers, second.servers["target"], file)


def asked(
    client: RouterClient, loop: asyncio.AbstractEventLoop, payload: dict[str, Any], request: Request
) -> Future[dict[str, Any]]:
    """A generation that goes on while the test looks."""
    return asyncio.run_coroutine_threadsafe(client.generate(payload, request, 60.0), loop)


def ask(pocket: Pocket, question: tasks.Question) -> Trace | LookaheadError:
    try:
        return answer(pocket, question, "async", 0.0, "exact")
    except LookaheadError as error:
        return error


@pytest.fixture(scope="module")
def expected(pocket: Pocket) -> dict[str, tuple[int, ...]]:
    """The target's own answers, without a router."""
    return {q.id: tuple(answer(pocket, q, None, 0.0, "exact").ids) for q in QUESTIONS}


def test_answers_are_the_targets_own_and_branches_stay_together(
    routed: Routed, expected: dict[str, tuple[int, ...]]
) -> None:
    before = [served(worker) for worker in routed.workers]
    with ThreadPoolExecutor(4) as pool:
        traces = list(pool.map(lambda q: ask(routed.pocket, q), QUESTIONS))
    for question, trace in zip(QUESTIONS, traces, strict=True):
        assert isinstance(trace, Trace), trace
        assert tuple(trace.ids) == expected[question.id]
        assert_complete(trace)
    assert all(
        after > then for after, then in zip(map(served, routed.workers), before, strict=True)
    ), "one had nothing"
    tokens = [trace.tokens()["target"] for trace in traces if isinstance(trace, Trace)]
    reuse = sum(t["reused"] for t in tokens) / sum(t["shareable"] for t in tokens)
    assert reuse > 0.95, tokens
    steps = [step for trace in traces if isinstance(trace, Trace) for step in trace.steps]
    assert any(step.verdicts for step in steps)  # whether one agrees word for word is chance


def test_an_abort_reaches_the_worker_at_once(routed: Routed) -> None:
    endless = {
        "input_ids": [5, 6, 7],
        "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True},
    }
    requests = [Request(key=f"abort {n}") for n in range(4)]
    loop = routed.pocket.roles["target"].loop
    replies = [asked(routed.transport, loop, endless, request) for request in requests]
    at_work = {worker: worker for worker in routed.workers}
    until(lambda: all(in_flight(at_work).values()), 20)
    for request in requests:
        loop.call_soon_threadsafe(request.cancel)
    until_idle(at_work)
    reasons = [reply.result(10)["meta_info"]["finish_reason"]["type"] for reply in replies]
    assert reasons == ["abort"] * 4, "what was written comes back: nobody had to hang up"


def test_doctor_finds_a_router_that_spreads_branches(routed: Routed, tmp_path: Path) -> None:
    """Those of one answer go to different workers, which do not have its prefix."""
    with router(("random",), routed.workers, tmp_path / "random.log") as url:
        draft = routed.pocket.fleet.urls["draft"]
        options = ("--target", url, "--draft", draft, "--verifier", "exact", "--json")
        found = json.loads(called("doctor", *options).stdout)
    assert found["ok"]
    lines = {(one["role"], one["name"]): one for one in found["lines"]}
    assert "2 workers" in lines["target", "server"]["found"]
    assert lines["target", "reuse"]["status"] == "warning"
    assert "--policy manual" in lines["target", "reuse"]["advice"]
    assert lines["target", "abort"]["status"] == lines["draft", "reuse"]["status"] == "ok"


def test_a_worker_that_dies_costs_no_answer(
    routed: Routed, expected: dict[str, tuple[int, ...]]
) -> None:
    """Comes last: afterwards one worker is left."""
    died = threading.Event()
    results: list[tuple[str, Trace | LookaheadError]] = []

    def keep_asking(first: int) -> None:
        left, number = 2, first
        while left:
            left -= died.is_set()
            question = QUESTIONS[number % len(QUESTIONS)]
            results.append((question.id, ask(routed.pocket, question)))
            number += 1

    pid = routed.second.pid
    assert pid is not None
    with ThreadPoolExecutor(4) as pool:
        askers = [pool.submit(keep_asking, n) for n in range(4)]
        try:
            until(lambda: passed_on(routed.url, routed.workers[1]) > 0, 30)
            os.killpg(os.getpgid(pid), signal.SIGKILL)
        finally:
            died.set()
        for asker in askers:
            asker.result(120)
    for name, result in results:
        if isinstance(result, Trace):
            assert tuple(result.ids) == expected[name]
        else:
            assert result.retryable, result
    later = [(q.id, ask(routed.pocket, q)) for q in QUESTIONS[:2]]
    assert all(
        isinstance(trace, Trace) and tuple(trace.ids) == expected[name] for name, trace in later
    )
    until_idle({"left": routed.workers[0]})
