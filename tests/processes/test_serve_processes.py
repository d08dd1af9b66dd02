"""An endpoint of several processes: one port, one set of limits, and processes that may die."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lr_sglang.simulated.model import Model
from tests.processes.mortal import MODEL, Client, Mortal, metric, mortals
from tests.serving import Process, Truth, serving, until

STEPS, STEP_SECONDS = 8, 0.4
SIMULATION = (
    "--steps",
    str(STEPS),
    "--step-seconds",
    str(STEP_SECONDS),
    "--c1",
    "0.3",
    "--judge-seconds",
    "0.2",
)
ANSWER, SLACK = STEPS * 0.6, 15.0  # seconds; the latter for a machine that is busy with other tests
TRUTH = Truth(Model(steps=STEPS))
numbers = itertools.count()


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Mortal]]:
    with mortals(tmp_path_factory.mktemp("processes"), *SIMULATION) as made:
        yield made


@pytest.fixture
def endpoint(runtimes: dict[str, Mortal], tmp_path: Path) -> Iterator[Process]:
    """Two processes, which have places for three answers and for two that wait."""
    urls = {role: runtime.url for role, runtime in runtimes.items()}
    options = (
        "--model-name",
        MODEL,
        "--depth",
        3,
        "--processes",
        2,
        "--concurrency",
        3,
        "--queue",
        2,
    )
    with serving(tmp_path, urls, *options, environ={"TMPDIR": str(tmp_path)}) as process:
        yield process


def ask(process: Process, count: int = 1) -> list[Client]:
    return [Client(process.url, f"What is {next(numbers)} + 1?") for _ in range(count)]


def good(client: Client) -> bool:
    """Whether it was answered, rightly and to the end."""
    client.end(3 * ANSWER + SLACK)
    return (
        client.finish == "stop" and client.closed and not TRUTH.wrong(client.question, client.text)
    )


def answering(process: Process) -> list[psutil.Process]:
    """The processes that answer: they have all connections."""
    below = psutil.Process(process.pid).children(recursive=True)
    return [one for one in below if len(one.net_connections("tcp")) > 1 or one.num_threads() > 1]


def test_one_port_has_one_set_of_limits_and_processes_may_die(
    runtimes, endpoint, record_property
) -> None:
    workers = answering(endpoint)
    assert len(workers) == 2
    clients = ask(endpoint, 5)
    until(
        lambda: (
            metric(endpoint.url, "answers_running") == 3
            and metric(endpoint.url, "requests_waiting") == 2
        ),
        SLACK,
    )
    (refused,) = ask(endpoint)
    refused.end(SLACK)
    assert (refused.status, refused.error["code"]) == (429, "queue_full")
    assert all(map(good, clients))
    served = [
        line["process"]
        for line in endpoint.log
        if line["event"] == "request" and line["status"] == 200
    ]
    assert set(served) == {0, 1}, "both have answered"

    clients = ask(endpoint, 5)
    until(
        lambda: (
            metric(endpoint.url, "answers_running") == 3
            and metric(endpoint.url, "requests_waiting") == 2
        ),
        SLACK,
    )
    workers[0].send_signal(signal.SIGKILL)
    for client in clients:
        client.end(3 * ANSWER + SLACK)
    lost = [client for client in clients if client.broken]
    assert lost and len(lost) < 5
    assert all(good(client) for client in clients if not client.broken), (
        "what the other process does is not disturbed"
    )
    record_property("again", round(until(lambda: len(answering(endpoint)) == 2, SLACK), 2))
    died = [line for line in endpoint.log if line["event"] == "process ended"]
    assert [line["status"] for line in died] == [-signal.SIGKILL]
    assert all(map(good, ask(endpoint, 5))), "it has all its places again"
    until(lambda: metric(endpoint.url, "answers_running") == 0, SLACK)
    until(lambda: not any(runtime.running() for runtime in runtimes.values()), SLACK)

    running, workers = ask(endpoint, 3), answering(endpoint)
    assert all(client.begun.wait(ANSWER + SLACK) for client in running)
    for one in [
        psutil.Process(endpoint.pid),
        *psutil.Process(endpoint.pid).children(recursive=True),
    ]:
        one.send_signal(
            signal.SIGINT
        )  # a terminal's Ctrl-C is for all of them: the parent counts it once
    until(
        lambda: {line["process"] for line in endpoint.log if line["event"] == "draining"} == {0, 1},
        SLACK,
    )
    (late,) = ask(endpoint)
    late.end(SLACK)
    assert late.error.get("code") == "shutting_down" or late.broken
    assert all(map(good, running))
    assert endpoint.popen.wait(SLACK) == 0, endpoint.said[-2000:]
    ended = [line for line in endpoint.log if line["event"] == "ended"]
    assert {line["process"] for line in ended} == {0, 1} and any(
        line["cpu_ms_per_call"] for line in ended
    )
    assert not [one for one in workers if one.is_running()]
    assert "Traceback" not in endpoint.said


def test_nothing_is_left_of_an_endpoint_that_is_killed(endpoint, tmp_path) -> None:
    below = psutil.Process(endpoint.pid).children(recursive=True)
    assert list(tmp_path.glob("lr-sglang-serve-*"))
    ask(endpoint, 2)
    until(lambda: metric(endpoint.url, "answers_running") == 2, SLACK)
    os.kill(endpoint.pid, signal.SIGKILL)
    until(
        lambda: (
            not [one for one in below if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        ),
        SLACK,
    )
    assert not list(tmp_path.glob("lr-sglang-serve-*"))
