"""Runtimes that die, hang, are slow or write rubbish behind the endpoint: nothing wrong is ever
delivered, nobody waits for long, and all is well again when they are. Real processes; the runtimes
are simulated, so every right text is known.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import sglang as sgl

from lr_sglang.config import ROLES
from lr_sglang.engine.client import Client as RuntimeClient
from lr_sglang.errors import BadReply
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import step
from tests.processes.mortal import MODEL, Client, Mortal, metric, mortals, ready
from tests.serving import Process, Truth, serving, until
from tests.simulated.model import Model
from tests.simulated.server import MALFORMED
from tests.simulated.words import pocket_words

FULL = os.environ.get("LR_SGLANG_FULL") == "1"
ALPHA, STEPS, STEP_SECONDS, C1, VERDICT_SECONDS = 0.6, 6, 0.3, 0.3, 0.2
SIMULATION = (
    *("--alpha", str(ALPHA), "--steps", str(STEPS), "--step-seconds", str(STEP_SECONDS)),
    *("--c1", str(C1), "--judge-seconds", str(VERDICT_SECONDS)),
)
STALL, AT_ONCE = 4.0, 6
SERVICE = (
    "-o",
    f"serve.model={MODEL}",
    "--mode",
    "lookahead",
    "--depth",
    "3",
    "-o",
    f"serve.stall={STALL!s}",
    "-o",
    "serve.timeout=60",
    "--concurrency",
    str(AT_ONCE),
)

SLACK = 10.0  # for a machine that is busy with other tests; every bound has it
# An answer by the target alone, with a verdict for every step.
ALONE = STEPS * (STEP_SECONDS + VERDICT_SECONDS)
# A request to draft or judge may take the stall time; a verifier that failed is asked again after
# two seconds, and can cost another one.
DEGRADED = ALONE + 2 * STALL + SLACK
# A draft or judge that hangs is known after two seconds, and costs nobody more than that.
HUNG = STEPS * STEP_SECONDS + 2.0 + SLACK
# A target that hangs is known by three polls of 2 s.
NOTICED = 3 * 2.0 + 1.0 + SLACK
BACK = 15.0
# Garbage is in tests/integration (test_properties.py, on the virtual clock, and test_serve.py), and
# tests/e2e/test_serve_real_faults.py kills a draft.
CASES = [("draft", "stopped"), ("judge", "stopped"), ("judge", "slowed"), ("target", "killed")]
CASES += [("draft", "killed"), ("judge", "killed"), ("target", "stopped")] if FULL else []
TRUTH = Truth(Model(alpha=(ALPHA,), steps=STEPS))
numbers = itertools.count()


@dataclass
class Stand:
    """An endpoint over three runtimes."""

    process: Process
    runtimes: dict[str, Mortal]

    @property
    def url(self) -> str:
        return self.process.url

    def ask(self, stream: bool = True) -> Client:
        return Client(self.url, f"What is {next(numbers)} + {os.getpid()}?", stream)

    def state(self) -> str:
        return str(ready(self.url)[1]["status"])

    def some(self) -> list[Client]:
        """As many as are answered at a time, streamed and not."""
        return [self.ask(number % 2 == 0) for number in range(AT_ONCE)]

    def busy(self, role: str) -> bool:
        return self.runtimes[role].running() > 0


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("faults")
    with mortals(folder, *SIMULATION) as runtimes:
        urls = {role: runtime.url for role, runtime in runtimes.items()}
        with serving(folder, urls, *SERVICE) as process:
            yield Stand(process, runtimes)


def strike(runtime: Mortal, fault: str) -> Callable[[], None]:
    """Does it; returns what makes it well again."""
    if fault == "killed":
        runtime.send(signal.SIGKILL)
        return runtime.live
    if fault == "stopped":
        runtime.send(signal.SIGSTOP)
        return lambda: runtime.send(signal.SIGCONT)
    runtime.fault(kind="late", seconds=STALL + 1)
    return runtime.well


def under_way(stand: Stand) -> list[Client]:
    """Answers of which one has begun, and a verdict in the making."""
    clients = stand.some()
    assert clients[0].begun.wait(ALONE + SLACK), clients[0]
    until(lambda: stand.busy("judge") or all(one.ended for one in clients), ALONE + SLACK, 0.01)
    return clients


def assert_right(heard: Client) -> None:
    """A whole answer, each step once, each in a version that may be there."""
    assert (heard.status, heard.finish, heard.error, heard.broken) == (200, "stop", {}, ""), heard
    assert not TRUTH.wrong(heard.question, heard.text), heard
    assert heard.closed or not heard.stream


def assert_refused(heard: Client) -> None:
    """An answer that could not be ended: what came of it is right, and it says that there is no
    more.
    """
    assert not TRUTH.wrong(heard.question, heard.text, whole=False), heard
    assert (
        heard.error["type"] in ("server_error", "timeout_error")
        and not heard.finish
        and not heard.broken
    ), heard
    assert heard.error["code"] in ("target_down", "target_failed", "target_timeout"), heard
    if heard.stream and heard.status == 200:
        assert heard.closed
    else:
        assert heard.status in (502, 503, 504) and not heard.text, heard


def test_rubbish_of_every_kind_is_told_from_an_answer(stand: Stand) -> None:
    runtime = stand.runtimes["target"]
    backend = RuntimeBackend(
        "target", RuntimeClient(runtime.url, "target"), pocket_words().tokenizer
    )

    @sgl.function
    def program(s):
        s += "Why?" + step()

    runtime.fault(kind="garbage", times=len(MALFORMED))
    try:
        for _ in MALFORMED:
            with pytest.raises(BadReply):
                program.run(backend=backend)["step"]
        assert program.run(backend=backend)["step"]
    finally:
        runtime.well()
        backend.shutdown()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("victim", "fault"), CASES)
def test_a_fault_is_survived(stand: Stand, victim: str, fault: str) -> None:
    until(lambda: stand.state() == "ready", BACK)
    asked = under_way(stand)
    heal = strike(stand.runtimes[victim], fault)
    try:
        for heard in asked:
            heard.end(NOTICED if victim == "target" else DEGRADED if fault == "slowed" else HUNG)
        if victim == "target":
            assert_target_down(stand, asked)
        else:
            assert_degraded(stand, victim, fault, asked)
    finally:
        heal()
    assert_whole_again(stand)


def test_a_pause_costs_nobody_an_answer(stand: Stand) -> None:
    """One that hangs for less than it takes to be given up goes on where it was."""
    until(lambda: stand.state() == "ready", BACK)
    asked = under_way(stand)
    for victim in ROLES:
        heal = strike(stand.runtimes[victim], "stopped")
        time.sleep(0.5)
        heal()
    for heard in asked:
        assert_right(heard.end(DEGRADED))


def assert_target_down(stand: Stand, asked: list[Client]) -> None:
    """Without a target everybody is sent away at once, and told so by ``/ready``."""
    for heard in asked:
        assert_right(heard) if heard.finish else assert_refused(
            heard
        )  # the last step may have been there
    assert any(heard.error for heard in asked)

    def away() -> bool:
        if stand.state() == "down":
            return True
        assert_refused(stand.ask(stream=False).end(NOTICED))
        return False

    until(away, NOTICED)
    status, told = ready(stand.url)
    assert (
        status == 503
        and told["roles"]["target"]["status"] == "down"
        and told["roles"]["target"]["reason"]
    )
    assert metric(stand.url, "runtime_up", role="target") == 0
    for heard in stand.some():
        heard.end(SLACK)
        assert (heard.status, heard.error["code"], heard.text) == (503, "target_down", ""), heard
        assert int(heard.headers["retry-after"]) > 0


def assert_degraded(stand: Stand, victim: str, fault: str, asked: list[Client]) -> None:
    """Without draft or judge the target goes on alone, and ``/ready`` says so; what is slow or
    writes rubbish is tried now and then.
    """
    for heard in asked:
        assert_right(heard)
    before = metric(stand.url, "degraded_requests_total")
    away = fault in ("killed", "stopped")
    if away:
        until(lambda: stand.state() == "degraded", SLACK)
    for heard in stand.some():
        assert_right(heard.end(HUNG if away else DEGRADED))
        if away:
            assert heard.about["degraded"], "the target alone"
            assert heard.text == TRUTH.plain(heard.question)
    if away:
        status, report = ready(stand.url)
        assert status == 200
        assert report["roles"][victim]["status"] == "down" and report["roles"][victim]["reason"]
        assert metric(stand.url, "runtime_up", role=victim) == 0
        assert metric(stand.url, "degraded_seconds", role=victim) > 0
    assert metric(stand.url, "degraded_requests_total") > before


def assert_whole_again(stand: Stand) -> None:
    """Answers look ahead again, nothing runs on, and nothing was lost of the endpoint."""

    def looks_ahead() -> bool:
        heard = [one.end(ALONE + SLACK) for one in stand.some()]
        for one in heard:
            assert_right(one)
        return all(not one.about["degraded"] and one.about["alpha"] for one in heard)

    until(lambda: stand.state() == "ready", BACK)
    until(looks_ahead, BACK, 0.2)
    until(lambda: not any(map(stand.busy, ROLES)), SLACK)
    until(lambda: not any(metric(stand.url, "branches_running", role=r) for r in ROLES), SLACK)
    assert metric(stand.url, "answers_running") == 0
