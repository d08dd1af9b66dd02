"""Real SGLang servers that die behind the endpoint which keeps them up: in the middle of an answer,
one role after another, and at last the endpoint itself. The tests use one another's servers: their
order counts. In a short run tests/processes/test_serve_faults.py kills simulated ones.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from lr_sglang import tasks
from lr_sglang.config import ROLES
from tests import FULL
from tests.processes.mortal import MODEL, Client, metric, ready
from tests.serving import Process, serving, until

pytestmark = pytest.mark.skipif(not FULL, reason="servers of its own: only in test-full")
SLACK = 30.0  # two cores, and perhaps other servers that are on their way up
QUESTIONS = sorted((q.question for q in tasks.load("pocket", limit=50)), key=len)[-3:]
SERVICE = (
    "-o",
    f"serve.model={MODEL}",
    "--mode",
    "lookahead",
    "--mode",
    "lossless",
    "--mode",
    "autoregressive",
)


@dataclass
class Stand:
    """The endpoint, and what the target writes alone."""

    process: Process
    logs: Path
    plain: dict[str, str]

    @property
    def url(self) -> str:
        return self.process.url

    def kill(self, role: str) -> None:
        """As the kernel would: no time to say good-bye. A guardian leads its server's process group."""
        os.killpg(self.process.guardian(self.logs / f"{role}.log").pid, signal.SIGKILL)

    def ask(self, question: str, mode: str, stream: bool = True) -> Client:
        more = {"temperature": 0, "max_tokens": 300, "lookahead": {"mode": mode}}
        return Client(self.url, question, stream, more)


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("real")
    runtimes = [  # they say at every token what they run
        f'[runtimes.{r}]\nmodel = "pocket:{r}"\nextra = {{load-snapshot-publish-interval = 1}}'
        for r in ROLES
    ]
    (folder / "own.toml").write_text(
        "\n".join(['name = "own"', 'judge_prompt = "pocket"', *runtimes])
    )
    with serving(
        folder, {}, "--deployment", folder / "own.toml", "--logs", folder / "logs", *SERVICE
    ) as process:
        stand = Stand(process, folder / "logs", {})
        for question in QUESTIONS:
            alone = stand.ask(question, "autoregressive", stream=False).end(SLACK)
            assert alone.finish == "stop", alone
            stand.plain[question] = alone.text
        yield stand


def assert_lossless(stand: Stand, client: Client) -> None:
    assert (client.status, client.finish, client.error, client.broken) == (200, "stop", {}, ""), (
        client
    )
    assert client.text == stand.plain[client.question]


def struck(stand: Stand, role: str, mode: str) -> list[Client]:
    """Two answers under way when a role's server dies."""
    clients = [stand.ask(QUESTIONS[0], mode), stand.ask(QUESTIONS[1], mode, stream=False)]
    assert clients[0].begun.wait(SLACK), clients[0]
    stand.kill(role)
    return clients


@pytest.mark.timeout(600)
def test_a_draft_and_a_judge_that_die_cost_time_and_nothing_else(stand: Stand) -> None:
    for role, mode in (("draft", "lossless"), ("judge", "lookahead")):
        degraded = metric(stand.url, "degraded_requests_total")
        clients = struck(stand, role, mode)
        for client in clients:
            client.end(SLACK)
            assert client.finish == "stop" and "\\boxed{" in client.text, client
            if mode == "lossless":
                assert_lossless(stand, client)
        until(lambda role=role: ready(stand.url)[1]["roles"][role]["status"] == "down", SLACK)
        status, told = ready(stand.url)
        assert (status, told["status"]) == (200, "degraded")
        assert_lossless(stand, stand.ask(QUESTIONS[2], "lossless").end(SLACK))
        assert metric(stand.url, "runtime_up", role=role) == 0
        if role == "draft":
            assert metric(stand.url, "degraded_requests_total") > degraded


def test_an_endpoint_that_is_killed_leaves_no_server_behind(stand: Stand) -> None:
    family = psutil.Process(stand.process.pid).children(recursive=True)
    # the target's two guardians, launcher, scheduler and detokenizer; the draft's have died above
    assert len(family) >= 5
    names = " ".join(word for one in family for word in one.cmdline()[:1])
    assert "sglang::scheduler" in names and "sglang::detokenizer" in names
    client = stand.ask(QUESTIONS[0], "lossless")
    assert client.begun.wait(SLACK)
    stand.process.popen.send_signal(signal.SIGKILL)
    client.end(SLACK)
    assert client.broken
    assert stand.plain[client.question].startswith(client.text)
    until(lambda: not any(one.is_running() for one in family), SLACK)
