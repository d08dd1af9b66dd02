"""A target that ``serve`` has started itself and that dies behind it, with simulated runtimes in
SGLang's place. Nobody starts it again: the endpoint ends, by name and with status 1. That it goes on
without draft or judge is seen on real servers (tests/e2e/test_serve_real_faults.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lr_sglang.config import ROLES
from tests.processes import own_servers
from tests.processes.mortal import MODEL, Client
from tests.serving import PATIENCE, ROOT, Process, Truth, serving
from tests.simulated.model import Model

STEPS = 8
SIMULATION = f"--steps {STEPS} --step-seconds 0.5 --c1 0.3 --judge-seconds 0.1"
SLACK = 10.0  # for a machine that is busy with other tests
TRUTH = Truth(Model(steps=STEPS))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    roles = "\n".join(f'[runtimes.{role}]\nmodel = "pocket:{role}"' for role in ROLES)
    (tmp_path / "own.toml").write_text(f'name = "own"\njudge_prompt = "pocket"\n{roles}\n')
    with serving(
        tmp_path,
        {},
        *("--deployment", tmp_path / "own.toml", "--logs", tmp_path / "logs"),
        *("-o", f"serve.model={MODEL}", "--mode", "lookahead", "--concurrency", 4),
        environ={"SIMULATION": SIMULATION, "PYTHONPATH": str(ROOT)},
        script=Path(own_servers.__file__),
    ) as process:
        yield process


def server(process: Process, role: str, folder: Path) -> psutil.Process:
    """The server's process of a role, which is its guardian's child."""
    log = str((folder / "logs" / f"{role}.log").resolve())
    (guardian,) = (
        one
        for one in psutil.Process(process.pid).children()
        if os.readlink(f"/proc/{one.pid}/fd/1") == log
    )
    (found,) = guardian.children()
    return found


def under_way(process: Process) -> list[Client]:
    """Answers of which the first has begun, and two that wait for a place."""
    clients = [Client(process.url, f"What is {n} + 1?", n % 2 == 0) for n in range(6)]
    assert clients[0].begun.wait(PATIENCE), clients[0]
    return clients


def ends(process: Process) -> list[dict[str, Any]]:
    """What the log says of servers that have ended; the end of a server's own log may follow."""
    return [line for line in process.log if line.get("event") == "server ended"]


@pytest.mark.timeout(300)
def test_a_target_that_dies_ends_answers_at_once_and_then_the_endpoint(
    process: Process, tmp_path: Path
) -> None:
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2 * len(ROLES)  # a guardian and a server for each
    asked = under_way(process)
    server(process, "target", tmp_path).kill()
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
    assert process.popen.wait(SLACK) == 1, process.said[-2000:]
    assert re.search(r"Error: target: the server ended with status \d+", process.said)
    assert "Traceback" not in process.said
    assert [end["role"] for end in ends(process)] == ["target"]
    assert not any(one.is_running() for one in family), "draft and judge are stopped"
