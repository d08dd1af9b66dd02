"""Runtimes that die, hang, are slow or write rubbish behind the endpoint: nothing wrong is ever
delivered, nobody waits for long, and all is well again when they are. And how answers and the
endpoint itself end. Real processes; the runtimes are simulated, so every right text is known.
"""

import itertools
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest
import sglang as sgl

from lr_sglang.config import ROLES
from lr_sglang.engine.client import CONNECT_SECONDS
from lr_sglang.engine.client import Client as RuntimeClient
from lr_sglang.errors import BadReply
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import step
from tests import FULL, ROOT
from tests.processes import own_servers
from tests.processes.mortal import MODEL, Client, Mortal, metric, mortals, ready
from tests.serving import PATIENCE, Process, Truth, serving, until
from tests.simulated.model import Model
from tests.simulated.server import MALFORMED
from tests.simulated.words import pocket_words

ALPHA, STEPS, STEP_SECONDS, C1, VERDICT_SECONDS = 0.6, 6, 0.3, 0.3, 0.2
SIMULATION = (
    *("--alpha", str(ALPHA), "--steps", str(STEPS), "--step-seconds", str(STEP_SECONDS)),
    *("--c1", str(C1), "--judge-seconds", str(VERDICT_SECONDS)),
)
STALL, AT_ONCE = 4.0, 6

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
# What a runtime is ordered to do, where it gets no signal.
ORDERS = {
    "slowed": {"kind": "late", "seconds": STALL + 1},
    "garbage": {"kind": "garbage"},
    "failing": {"kind": "fail"},
}
CASES = [("draft", "stopped"), ("judge", "stopped"), ("judge", "slowed"), ("target", "killed")]
CASES += [("draft", "garbage"), ("judge", "failing")]
if FULL:
    CASES += [("draft", "killed"), ("judge", "killed"), ("target", "stopped")]
    CASES += [("draft", "failing"), ("judge", "garbage")]
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

    def waiting(self) -> float:
        return metric(self.url, "requests_waiting")

    def some(self) -> list[Client]:
        """As many as are answered at a time, streamed and not."""
        return [self.ask(number % 2 == 0) for number in range(AT_ONCE)]

    def busy(self, role: str) -> bool:
        return self.runtimes[role].running() > 0

    def idle(self) -> bool:
        return not any(map(self.busy, ROLES))


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Mortal]]:
    with mortals(tmp_path_factory.mktemp("faults"), *SIMULATION) as found:
        yield found


@contextmanager
def served(runtimes: dict[str, Mortal], *options: object) -> Iterator[Stand]:
    urls = {role: runtime.url for role, runtime in runtimes.items()}
    folder = runtimes["target"].log.parent
    given = ("-o", f"serve.model={MODEL}", "--mode", "lookahead", "--depth", 3)
    with serving(folder, urls, *given, *options) as process:
        yield Stand(process, runtimes)


@pytest.fixture(scope="module")
def stand(runtimes: dict[str, Mortal]) -> Iterator[Stand]:
    limits = ("-o", f"serve.stall={STALL}", "-o", "serve.timeout=60", "--concurrency", AT_ONCE)
    with served(runtimes, *limits) as found:
        yield found


@contextmanager
def struck(runtime: Mortal, fault: str) -> Iterator[None]:
    """While it has this fault; afterwards it is well again."""
    strike, heal = {
        "killed": (partial(runtime.send, signal.SIGKILL), runtime.live),
        "stopped": (partial(runtime.send, signal.SIGSTOP), partial(runtime.send, signal.SIGCONT)),
    }.get(fault) or (partial(runtime.fault, **ORDERS[fault]), runtime.well)
    strike()
    try:
        yield
    finally:
        heal()


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
    with struck(stand.runtimes[victim], fault):
        for heard in asked:
            heard.end(NOTICED if victim == "target" else HUNG if fault == "stopped" else DEGRADED)
        if victim == "target":
            assert_target_down(stand, asked)
        else:
            assert_degraded(stand, victim, fault, asked)
    assert_whole_again(stand)


def test_a_pause_costs_nobody_an_answer(stand: Stand) -> None:
    """One that hangs for less than it takes to be given up goes on where it was."""
    until(lambda: stand.state() == "ready", BACK)
    asked = under_way(stand)
    for victim in ROLES:
        with struck(stand.runtimes[victim], "stopped"):
            time.sleep(0.5)
    for heard in asked:
        assert_right(heard.end(DEGRADED))


def assert_target_down(stand: Stand, asked: list[Client]) -> None:
    """Without a target everybody is sent away at once, and told so by ``/ready``."""
    for heard in asked:
        # the last step may have been there
        assert_right(heard) if heard.finish else assert_refused(heard)
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
    until(stand.idle, SLACK)
    until(lambda: not any(metric(stand.url, "branches_running", role=r) for r in ROLES), SLACK)
    assert metric(stand.url, "answers_running") == 0


# -- how answers and the endpoint end


@pytest.fixture(scope="module")
def one_at_a_time(runtimes: dict[str, Mortal]) -> Iterator[Stand]:
    limits = ("--concurrency", 1, "-o", "serve.stall=2", "-o", "serve.drain=30")
    with served(runtimes, *limits) as found:
        yield found


def judged(stand: Stand) -> Client:
    """An answer that the judge works on, and with it target and draft."""
    client = stand.ask()
    until(lambda: stand.busy("judge"), ALONE + SLACK, 0.005)
    return client


def test_a_hung_runtime_does_not_hold_up_whoever_comes_after(one_at_a_time: Stand) -> None:
    """A runtime that takes no abort is hung up on, long before it is known that it takes none."""
    client = judged(one_at_a_time)
    with struck(one_at_a_time.runtimes["judge"], "stopped"):
        after = one_at_a_time.ask()
        until(lambda: one_at_a_time.waiting() == 1, SLACK, 0.01)
        client.close_connection()
        until(lambda: one_at_a_time.waiting() == 0, CONNECT_SECONDS, 0.005)
        assert_right(after.end(ALONE + 2 * 3 + SLACK))
    until(lambda: one_at_a_time.state() == "ready", BACK + 6 + SLACK)
    until(one_at_a_time.idle, SLACK)


def test_sigterm_lets_answers_end_and_admits_nobody(one_at_a_time: Stand) -> None:
    """The last test with this endpoint."""
    running, process = judged(one_at_a_time), one_at_a_time.process
    waiting = one_at_a_time.ask(stream=False)
    until(lambda: one_at_a_time.waiting() == 1, SLACK, 0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    process.popen.send_signal(signal.SIGTERM)
    waiting.end(SLACK)
    status, told = ready(one_at_a_time.url)
    assert (status, told["status"]) == (503, "draining")
    late = one_at_a_time.ask().end(SLACK)
    for refused in (waiting, late):
        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
    assert_right(running.end(ALONE + SLACK))
    assert process.popen.wait(SLACK) == 0, process.said[-2000:]
    assert one_at_a_time.idle()
    assert not [child for child in children if child.is_running()]
    assert "Traceback" not in process.said


@pytest.mark.parametrize(
    ("drain", "signals", "hung"),
    [
        (0.5, [signal.SIGTERM], False),
        (60, [signal.SIGINT, signal.SIGINT], False),
        (1, [signal.SIGTERM], True),
    ],
    ids=["late", "twice", "while the target hangs"],
)
def test_answers_that_take_too_long_are_ended(
    runtimes: dict[str, Mortal], drain: float, signals: list[signal.Signals], hung: bool
) -> None:
    """When the time to drain is up, or at a second Ctrl-C, at once; and what it takes to send the
    last and to hang up.
    """
    options = ("--concurrency", 4, "-o", f"serve.drain={drain}")
    with ExitStack() as hanging, served(runtimes, *options) as stand:
        running = [stand.ask(stream) for stream in (True, True, False, False)]
        assert running[0].begun.wait(ALONE + SLACK) and running[1].begun.wait(ALONE + SLACK)
        if hung:
            hanging.enter_context(struck(runtimes["target"], "stopped"))
        for number in signals:
            stand.process.popen.send_signal(number)
            time.sleep(0.15)
        status = stand.process.popen.wait(SLACK + 6 if hung else SLACK + 3)
        assert status == 0, stand.process.said[-2000:]
        for client in running:
            client.end(SLACK)
            assert client.error["code"] == "shutting_down" and not client.finish, client
            assert client.closed if client.stream else client.status == 503
            assert not TRUTH.wrong(client.question, client.text, whole=False)
        hanging.close()
        until(stand.idle, SLACK)
        assert "Traceback" not in stand.process.said


# -- servers that the endpoint has started itself


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Process]:
    """An endpoint that has started its runtimes, which are simulated ones in SGLang's place."""
    roles = "\n".join(f'[runtimes.{role}]\nmodel = "pocket:{role}"' for role in ROLES)
    (tmp_path / "own.toml").write_text(f'name = "own"\njudge_prompt = "pocket"\n{roles}\n')
    with serving(
        tmp_path,
        {},
        *("--deployment", tmp_path / "own.toml", "--logs", tmp_path / "logs"),
        *("-o", f"serve.model={MODEL}", "--mode", "lookahead", "--concurrency", 4),
        environ={"SIMULATION": " ".join(SIMULATION), "PYTHONPATH": str(ROOT)},
        script=Path(own_servers.__file__),
    ) as process:
        yield process


@pytest.mark.timeout(300)
def test_without_a_draft_it_goes_on_and_a_target_that_dies_ends_answers_and_then_the_endpoint(
    own: Process, tmp_path: Path
) -> None:
    """Nobody starts them again: the endpoint ends, by name and with status 1."""
    family = psutil.Process(own.pid).children(recursive=True)
    assert len(family) >= 2 * len(ROLES)  # a guardian and a server for each

    def kill(role: str) -> None:
        (server,) = own.guardian(tmp_path / "logs" / f"{role}.log").children()
        server.kill()

    kill("draft")
    until(lambda: ready(own.url)[1]["status"] == "degraded", SLACK)
    alone = Client(own.url, "What is 0 + 1?").end(HUNG)
    assert_right(alone)
    assert alone.about["degraded"] and alone.text == TRUTH.plain(alone.question)
    asked = [Client(own.url, f"What is {n} + 1?", n % 2 == 0) for n in range(AT_ONCE)]
    assert asked[0].begun.wait(PATIENCE), asked[0]
    kill("target")
    for heard in asked:
        heard.end(SLACK)
        assert heard.error and not heard.finish and not heard.broken, heard
        assert not TRUTH.wrong(heard.question, heard.text, whole=False), heard
        if heard.stream and heard.status == 200:
            assert heard.closed and heard.error["code"] == "target_down", heard
        else:  # who waited is told either, as it depends on which is seen first
            assert heard.error["code"] in ("target_down", "shutting_down"), heard
            assert (heard.status, heard.text) == (503, ""), heard
            assert int(heard.headers["retry-after"]) > 0
    assert asked[0].text and asked[0].error["code"] == "target_down", "it had begun"
    assert own.popen.wait(SLACK) == 1, own.said[-2000:]
    assert re.search(r"Error: target: the server ended with status \d+", own.said)
    assert "Traceback" not in own.said
    ended = [line["role"] for line in own.log if line.get("event") == "server ended"]
    assert ended == ["draft", "target"]
    assert not any(one.is_running() for one in family), "draft and judge are stopped"
