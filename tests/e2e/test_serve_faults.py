"""Runtimes that die, hang, are slow or write rubbish behind the endpoint: nothing wrong is ever delivered, nobody waits
for long, and all is well again when they are. Real processes; the runtimes are simulated, so every right text is known.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from lr_sglang.simulated.model import Model
from tests.e2e.mortal import MODEL, Client, Mortal, metric, mortals, ready
from tests.serving import Process, Truth, serving, until

FULL = os.environ.get("LR_SGLANG_FULL") == "1"
ALPHA, STEPS, STEP_SECONDS, C1, VERDICT_SECONDS = 0.6, 6, 0.3, 0.3, 0.2
SIMULATION = (
    *("--alpha", str(ALPHA), "--steps", str(STEPS), "--step-seconds", str(STEP_SECONDS)),
    *("--c1", str(C1), "--judge-seconds", str(VERDICT_SECONDS)),
)
STALL = 2.0
SERVICE = ("--model-name", MODEL, "--depth", "3", "--stall-timeout", str(STALL), "--request-timeout", "60")

SLACK = 10.0  # for a machine that is busy with other tests; every bound has it
# An answer by the target alone, with a verdict for every step.
ALONE = STEPS * (STEP_SECONDS + VERDICT_SECONDS)
# A request to draft or judge is given up after the stall time, which is looked at once a second; one that is then asked
# again can cost another one.
DEGRADED = ALONE + 2 * (STALL + 1) + SLACK
# A target that hangs is known by two probes of 2 s, a second apart; what waits for it is given up after the stall time.
NOTICED = 2 * (2.0 + 1.0) + STALL + 1 + SLACK
# A runtime that keeps failing is tried out 15 s after it failed last, and has 5 s for it.
BACK = 15.0 + 1.0 + 5.0 + SLACK
SLOW = {"target": 1.0, "draft": STALL + 1, "judge": STALL + 1}  # seconds that each request takes more

VICTIMS, TIMES = ("draft", "judge", "target"), ("start", "step", "verdict")
FAULTS = ("killed", "stopped", "slowed", "garbage")
CHOSEN = {
    ("draft", "killed", "step"),
    ("draft", "stopped", "verdict"),
    ("judge", "killed", "verdict"),
    ("judge", "garbage", "start"),
    ("target", "killed", "verdict"),
    ("target", "garbage", "step"),
}
MATRIX = [case for case in itertools.product(VICTIMS, FAULTS, TIMES) if FULL or case in CHOSEN]
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

    def up(self, role: str) -> bool:
        return metric(self.url, "runtime_up", role=role) == 1

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
    order = {"kind": "late", "seconds": SLOW[runtime.role]} if fault == "slowed" else {"kind": "garbage"}
    runtime.fault(**order)
    return runtime.well


def the_moment(stand: Stand, victim: str, when: str, streamed: Client) -> None:
    """Waits for it: an answer is under way, and a step or a verdict in the making."""
    if when == "start":
        return
    assert streamed.begun.wait(ALONE + SLACK), streamed
    if when == "verdict":
        until(lambda: stand.busy("judge"), ALONE + SLACK, 0.01)
    elif victim == "judge":
        until(lambda: stand.busy("target") and not stand.busy("judge"), ALONE + SLACK, 0.01)
    else:
        until(lambda: stand.busy(victim), ALONE + SLACK, 0.01)


def assert_right(heard: Client) -> None:
    """A whole answer, each step once, each in a version that may be there."""
    assert (heard.status, heard.finish, heard.error, heard.broken) == (200, "stop", {}, ""), heard
    assert not TRUTH.wrong(heard.question, heard.text), heard
    assert heard.closed or not heard.stream


def assert_refused(heard: Client) -> None:
    """An answer that could not be ended: what came of it is right, and it says that there is no more."""
    assert not TRUTH.wrong(heard.question, heard.text, whole=False), heard
    assert heard.error["type"] in ("server_error", "timeout_error") and not heard.finish and not heard.broken, heard
    assert heard.error["code"] in ("target_down", "target_failed", "target_timeout"), heard
    if heard.stream and heard.status == 200:
        assert heard.closed
    else:
        assert heard.status in (502, 503, 504) and not heard.text, heard


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("victim", "fault", "when"), MATRIX, ids=["-".join(case) for case in MATRIX])
def test_a_fault_is_survived(stand: Stand, victim: str, fault: str, when: str, record_property) -> None:
    until(lambda: stand.state() == "ready", BACK)
    degraded = metric(stand.url, "degraded_requests_total")
    under_way = [] if when == "start" else [stand.ask(), stand.ask(stream=False)]
    the_moment(stand, victim, when, under_way[0] if under_way else None)
    heal = strike(stand.runtimes[victim], fault)
    struck = time.monotonic()
    try:
        asked = under_way or [stand.ask(), stand.ask(stream=False)]
        if victim == "target" and fault != "slowed":
            for heard in asked:
                heard.end(NOTICED)
            record_property("answered", round(time.monotonic() - struck, 2))
            # what had all its text before may have ended well
            for heard in asked:
                assert_right(heard) if heard.finish else assert_refused(heard)
            assert any(heard.error for heard in asked)
            record_property("noticed", round(target_down(stand, struck), 2))
        else:
            bound = DEGRADED if victim != "target" else STEPS * (STEP_SECONDS + SLOW["target"]) + ALONE + SLACK
            for heard in asked:
                assert_right(heard.end(bound))
            record_property("answered", round(max(heard.seconds for heard in asked), 2))
            if victim != "target":
                record_property("noticed", round(degraded_now(stand, victim, fault, struck), 2))
                assert metric(stand.url, "degraded_requests_total") > degraded
    finally:
        heal()
    healed = time.monotonic()
    until(lambda: stand.state() == "ready", BACK)
    record_property("back", round(time.monotonic() - healed, 2))
    record_property("whole", round(whole_again(stand, healed), 2))
    assert stand.process.popen.poll() is None


def target_down(stand: Stand, struck: float) -> float:
    """Without a target everybody is sent away at once, and told so by ``/ready``; seconds until that was so."""
    sent = 0

    def away() -> bool:
        nonlocal sent
        if stand.state() == "down":
            return True
        sent += 1
        assert_refused(stand.ask(stream=False).end(NOTICED))
        return False

    until(away, NOTICED)
    noticed = time.monotonic() - struck
    status, told = ready(stand.url)
    assert status == 503 and told["roles"]["target"]["status"] == "down" and told["roles"]["target"]["reason"]
    assert not stand.up("target")
    for stream in (True, False):
        heard = stand.ask(stream).end(SLACK)
        assert (heard.status, heard.error["code"], heard.text) == (503, "target_down", ""), heard
        assert int(heard.headers["retry-after"]) > 0
        assert heard.seconds < SLACK / 2
    return noticed


def degraded_now(stand: Stand, victim: str, fault: str, struck: float) -> float:
    """While a draft or a judge is away the target goes on alone, and ``/ready`` says so; seconds until it did.

    One that is slow may come back to be tried now and then.
    """

    def told() -> bool:
        if stand.state() == "degraded":
            return True
        assert_right(stand.ask(stream=False).end(DEGRADED))
        return metric(stand.url, "degraded_seconds", role=victim) > 0 and fault == "slowed"

    until(told, NOTICED + DEGRADED)
    noticed = time.monotonic() - struck
    status, report = ready(stand.url)
    assert status == 200
    if fault != "slowed":
        assert report["roles"][victim]["status"] == "down" and report["roles"][victim]["reason"], report
        assert not stand.up(victim)
        heard = [stand.ask(), stand.ask(stream=False)]
        for one in heard:
            assert_right(one.end(DEGRADED))
            assert one.text == TRUTH.plain(one.question) or stand.state() == "ready", "the target alone"
            assert one.about["degraded"] or stand.state() == "ready"
    return noticed


def whole_again(stand: Stand, healed: float) -> float:
    """Answers look ahead again, nothing runs on, and nothing was lost of the endpoint; seconds until that was so."""

    def looks_ahead() -> bool:
        heard = [stand.ask(), stand.ask(stream=False)]
        for one in heard:
            assert_right(one.end(ALONE + SLACK))
        return all(not one.about["degraded"] and one.about["alpha"] for one in heard)

    until(looks_ahead, BACK, 0.2)
    seconds = time.monotonic() - healed
    until(lambda: not any(stand.busy(role) for role in stand.runtimes), 3 + SLACK)
    until(lambda: not any(metric(stand.url, "branches_running", role=role) for role in stand.runtimes), SLACK)
    assert metric(stand.url, "answers_running") == 0
    return seconds
