"""How answers and the endpoint itself end: who waits behind a client that hangs up, signals, and
what is left at the runtimes. Real processes; the runtimes are simulated. That nothing runs on after
a client that has hung up is seen on real servers, in test_serve_clients.py.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from lr_sglang.engine.client import CONNECT_SECONDS
from tests.processes.mortal import MODEL, Client, Mortal, metric, mortals, ready
from tests.serving import Process, Truth, serving, until
from tests.simulated.model import Model

STEPS, STEP_SECONDS, VERDICT_SECONDS = 8, 0.4, 0.2
SIMULATION = (
    *("--steps", str(STEPS), "--step-seconds", str(STEP_SECONDS), "--c1", "0.3"),
    *("--judge-seconds", str(VERDICT_SECONDS)),
)
ANSWER = STEPS * (STEP_SECONDS + VERDICT_SECONDS)
SLACK = 10.0  # for a machine that is busy with other tests
TRUTH = Truth(Model(steps=STEPS))
numbers = itertools.count()


@dataclass
class Stand:
    """Runtimes, and how to put an endpoint over them."""

    runtimes: dict[str, Mortal]
    folder: Path

    def serving(self, *options: object):
        urls = {role: runtime.url for role, runtime in self.runtimes.items()}
        return serving(
            self.folder,
            urls,
            "-o",
            f"serve.model={MODEL}",
            "--mode",
            "lookahead",
            "--depth",
            3,
            *options,
        )

    def running(self) -> int:
        """Requests that all runtimes work on."""
        return sum(runtime.running() for runtime in self.runtimes.values())


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("ends")
    with mortals(folder, *SIMULATION) as runtimes:
        yield Stand(runtimes, folder)


@pytest.fixture(scope="module")
def one_at_a_time(stand: Stand) -> Iterator[Process]:
    with stand.serving(
        "--concurrency", 1, "-o", f"serve.stall={2}", "-o", f"serve.drain={30}"
    ) as process:
        yield process


@contextmanager
def stopped(runtime: Mortal) -> Iterator[None]:
    """While it hangs."""
    runtime.send(signal.SIGSTOP)
    try:
        yield
    finally:
        runtime.send(signal.SIGCONT)


def ask(process: Process, stream: bool = True) -> Client:
    return Client(process.url, f"What is {next(numbers)} + 1?", stream)


def under_way(stand: Stand, process: Process, stream: bool) -> Client:
    """An answer that the judge works on, and with it target and draft."""
    client = ask(process, stream)
    until(lambda: stand.runtimes["judge"].running(), ANSWER + SLACK, 0.005)
    return client


def test_a_hung_runtime_does_not_hold_up_whoever_comes_after(stand, one_at_a_time) -> None:
    """A runtime that takes no abort is hung up on, long before it is known that it takes none."""
    client = under_way(stand, one_at_a_time, True)
    with stopped(stand.runtimes["judge"]):
        after = ask(one_at_a_time)
        until(lambda: metric(one_at_a_time.url, "requests_waiting") == 1, SLACK, 0.01)
        client.close_connection()
        until(lambda: metric(one_at_a_time.url, "requests_waiting") == 0, CONNECT_SECONDS, 0.005)
        after.end(ANSWER + 2 * 3 + SLACK)
        assert not TRUTH.wrong(after.question, after.text) and after.finish == "stop"
    until(lambda: ready(one_at_a_time.url)[1]["status"] == "ready", 15 + 6 + SLACK)
    until(lambda: not stand.running(), SLACK)


def test_sigterm_lets_answers_end_and_admits_nobody(stand, one_at_a_time) -> None:
    """The last test with this endpoint."""
    running = under_way(stand, one_at_a_time, True)
    waiting = ask(one_at_a_time, stream=False)
    until(lambda: metric(one_at_a_time.url, "requests_waiting") == 1, SLACK, 0.01)
    children = psutil.Process(one_at_a_time.pid).children(recursive=True)
    one_at_a_time.popen.send_signal(signal.SIGTERM)
    waiting.end(SLACK)
    assert (waiting.status, waiting.error["code"]) == (503, "shutting_down")
    assert (
        ready(one_at_a_time.url)[0] == 503 and ready(one_at_a_time.url)[1]["status"] == "draining"
    )
    late = ask(one_at_a_time).end(SLACK)
    assert (late.status, late.error["code"]) == (503, "shutting_down")
    running.end(ANSWER + SLACK)
    assert (
        running.finish == "stop"
        and running.closed
        and not TRUTH.wrong(running.question, running.text)
    )
    assert one_at_a_time.popen.wait(SLACK) == 0, one_at_a_time.said[-2000:]
    assert not stand.running()
    assert not [child for child in children if child.is_running()]
    assert "Traceback" not in one_at_a_time.said


@pytest.mark.parametrize(
    ("drain", "signals", "hung"),
    [
        (0.5, [signal.SIGTERM], []),
        (60, [signal.SIGINT, signal.SIGINT], []),
        (1, [signal.SIGTERM], ["target"]),
    ],
    ids=["late", "twice", "while the target hangs"],
)
def test_answers_that_take_too_long_are_ended(stand, drain, signals, hung) -> None:
    """When the time to drain is up, or at a second Ctrl-C, at once; and what it takes to send the
    last and to hang up.
    """
    with (
        ExitStack() as hanging,
        stand.serving("--concurrency", 4, "-o", f"serve.drain={drain}") as process,
    ):
        running = [ask(process, stream) for stream in (True, True, False, False)]
        assert running[0].begun.wait(ANSWER + SLACK) and running[1].begun.wait(ANSWER + SLACK)
        for role in hung:
            hanging.enter_context(stopped(stand.runtimes[role]))
        for number in signals:
            process.popen.send_signal(number)
            time.sleep(0.15)
        status = process.popen.wait(SLACK + 6 if hung else SLACK + 3)
        assert status == 0, process.said[-2000:]
        for client in running:
            client.end(SLACK)
            assert client.error["code"] == "shutting_down" and not client.finish, client
            assert client.closed if client.stream else client.status == 503
            assert not TRUTH.wrong(client.question, client.text, whole=False)
        hanging.close()
        until(lambda: not stand.running(), SLACK)
        assert "Traceback" not in process.said
