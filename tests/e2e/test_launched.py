"""A deployment that ``lr-sglang launch`` keeps up, and a program that stands in the documents: from
the command line, from Python and by the endpoint. Real servers; in an ordinary run the draft is the
session's.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from lr_sglang.config import ROLES
from tests import overlap
from tests.e2e.conftest import Pocket, full

ROOT = Path(__file__).parents[2]
QUESTION = (
    "Ava has 5 toys. Ben brings 2 bags with 6 toys each. How many toys does Ava have at the end?"
)


def program() -> str:
    """The first program of the page, as it is to be put into a file: without its last lines."""
    code = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "programs.md").read_text("utf-8"), re.DOTALL
    )[0]
    return str(code.split("\nwith lr.deployment")[0])


class Home:
    """A folder with the program, and commands in it; what they start ends with it."""

    def __init__(self, path: Path) -> None:
        self.path, self.started = path, list[subprocess.Popen[str]]()
        (path / "mine.py").write_text(program())

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        out = (self.path / f"{arguments[0]}.txt").open("w")
        command = [sys.executable, ROOT / "cli.py", *arguments]
        with out:
            made = subprocess.Popen(
                command, cwd=self.path, stdout=out, stderr=subprocess.STDOUT, text=True
            )
        self.started.append(made)
        return made

    def said(self, name: str) -> str:
        return (self.path / f"{name}.txt").read_text("utf-8")

    def wait(
        self, process: subprocess.Popen[str], name: str, there: Callable[[str], Any], seconds: float
    ) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and process.poll() is None:
            if found := there(self.said(name)):
                return found
            time.sleep(0.1)
        raise AssertionError(self.said(name))

    def call(self, *arguments: str) -> str:
        command = [sys.executable, ROOT / "cli.py", *arguments]
        done = subprocess.run(
            command, cwd=self.path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def records(self, folder: str) -> list[dict[str, Any]]:
        files = (self.path / folder).rglob("records.jsonl")
        return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("home")
        patch.setenv("XDG_STATE_HOME", str(path / "state"))
        patch.chdir(path)
        made = Home(path)
        yield made
        for one in made.started:
            if one.poll() is None:
                one.send_signal(signal.SIGTERM)
                one.wait(30)


@pytest.fixture(scope="module")
def shared(pocket: Pocket) -> dict[str, str]:
    """Servers of the session that the deployment attaches to, by role."""
    return {} if full else {"draft": pocket.fleet.urls["draft"]}


@pytest.fixture(scope="module")
def up(home: Home, shared: dict[str, str]) -> subprocess.Popen[str]:
    process = home.start(
        "launch", "pocket", *(word for role, url in shared.items() for word in (f"--{role}", url))
    )
    home.wait(process, "launch", lambda said: said.count("http://127.0.0.1") >= len(ROLES), 280)
    return process


def test_a_program_of_the_documents_on_the_command_line(home: Home, up: object) -> None:
    asked = ("run", "--attach", "pocket", "--program", "mine.py:twice:tokens=300")
    assert "17" in home.call(*asked, QUESTION, "--output", "out", "--quiet")
    (record,) = home.records("out")
    plain = ("--task", "pocket", "--limit", str(overlap.ANSWERS), "--output", "plain", "--quiet")
    home.call("run", "--attach", "pocket", *plain)
    assert any(map(overlap.of_record, home.records("plain")))
    assert record["program"]["answered"]["lookahead"] >= 2 and record["error"] is None


def test_by_the_endpoint(home: Home, up: object) -> None:
    """What an endpoint that attaches does without a program is in tests/integration/test_overlap.py,
    as are bench and Python.
    """
    program = ("--program", "mine.py:twice:tokens=300")
    serving = home.start("serve", "--attach", "pocket", "--port", "0", *program)
    try:
        found = re.compile(r"http://127\.0\.0\.1:\d+").search
        url = home.wait(serving, "serve", found, 240)[0]
        models = urllib3.request("GET", f"{url}/v1/models").json()["data"]
        said = [{"role": "user", "content": QUESTION}]
        body = {"model": models[0]["id"], "messages": said}
        reply = urllib3.request("POST", f"{url}/v1/chat/completions", json=body, timeout=60)
        assert reply.status == 200 and "17" in reply.json()["choices"][0]["message"]["content"]
        assert "requests at a time" not in home.said("serve"), (
            "launched with room for what attaches by default"
        )
    finally:
        serving.send_signal(signal.SIGTERM)
        ended = serving.wait(60)
    assert ended == 0


def test_it_goes_as_a_whole(home: Home, up: subprocess.Popen[str], shared: dict[str, str]) -> None:
    own = set(re.findall(r"http://127\.0\.0\.1:\d+", home.said("launch"))) - set(shared.values())
    up.send_signal(signal.SIGTERM)
    assert up.wait(30) == 0
    assert len(own) + len(shared) == len(ROLES)
    for url in own:
        with pytest.raises(urllib3.exceptions.HTTPError):
            urllib3.request("GET", f"{url}/health", retries=False, timeout=5)
    assert "up: pocket" not in home.call("launch", "--list")
