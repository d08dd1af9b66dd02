"""A deployment that ``lr-sglang launch`` keeps up, and a program that stands in the documents: from
the command line, from Python and by the endpoint. Real servers; in an ordinary run draft and judge
are the session's.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import urllib3

from lr_sglang import pocket
from lr_sglang.config import ROLES, Deployment, Runtime
from lr_sglang.errors import LaunchError
from lr_sglang.runtimes import launch
from tests import FULL, ROOT, overlap, records
from tests.called import called
from tests.e2e.conftest import Pocket
from tests.serving import Process, begun, until

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
        self.path, self.started = path, list[Process]()
        (path / "mine.py").write_text(program())

    def start(self, *arguments: str) -> Process:
        self.started.append(begun(self.path, *arguments))
        return self.started[-1]

    def call(self, *arguments: str) -> str:
        """In this process, which need not import everything again (test_run_cli.py has one of its
        own).
        """
        return called(*arguments).stdout

    def records(self, folder: str) -> list[dict[str, Any]]:
        return records(self.path / folder)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("home")
        patch.setenv("XDG_STATE_HOME", str(path / "state"))
        patch.chdir(path)
        made = Home(path)
        yield made
        for one in made.started:
            one.stop()


@pytest.fixture(scope="module")
def shared(pocket: Pocket) -> dict[str, str]:
    """Servers of the session that the deployment attaches to, by role."""
    return {} if FULL else {role: pocket.fleet.urls[role] for role in ("draft", "judge")}


@pytest.fixture(scope="module")
def up(home: Home, shared: dict[str, str]) -> Process:
    process = home.start(
        "launch",
        "pocket",
        "--with-token-layer",
        *(word for role, url in shared.items() for word in (f"--{role}", url)),
    )
    process.wait(lambda said: said.count("http://127.0.0.1") >= len(ROLES), 280)
    return process


def test_a_program_of_the_documents_on_the_command_line(home: Home, up: object) -> None:
    asked = ("run", "--attach", "pocket", "--program", "mine.py:twice:tokens=300")
    assert "17" in home.call(*asked, QUESTION, "--output", "out", "--quiet")
    (record,) = home.records("out")
    assert record["program"]["answered"]["lookahead"] >= 2 and record["error"] is None


def test_its_token_layer_draws_what_the_target_draws_without(
    home: Home, up: object, pocket: Pocket
) -> None:
    """Half as many forward passes at least; branches are under way together, as the slots allow: in
    sync, in which no draft is late on a busy machine.
    """
    options = ("run", "--task", "pocket", "--limit", str(overlap.ANSWERS), "--quiet")
    # every version is written, by the token layer
    options += (
        "--concurrency",
        "4",
        "-o",
        "lookahead.reading=never",
        "--schedule",
        "sync",
        "--output",
    )
    home.call(*options, "layered", "--attach", "pocket", "--mode", "sd", "--mode", "lookahead+sd")
    home.call(*options, "plain", *pocket.attach, "--mode", "autoregressive")
    layered, plain = home.records("layered"), home.records("plain")
    assert len(layered) == 2 * len(plain) and all(r["seeded"] for r in layered + plain)
    digests = [
        {r["question_id"]: r["ids_digest"] for r in records if r["mode"] != "lookahead+sd"}
        for records in (layered, plain)
    ]
    assert digests[0] == digests[1]
    for record in layered:
        assert record["error"] is None and record["finish"] == "stop"
        assert record["tokens"]["target"]["sd"]["length"] > 1.5
    assert any(map(overlap.of_record, layered))


def test_by_the_endpoint(home: Home, up: object, shared: dict[str, str]) -> None:
    """What an endpoint that attaches does without a program is in tests/integration/test_overlap.py,
    as are bench and Python.
    """
    program = ("--program", "mine.py:twice:tokens=300")
    serving = home.start("serve", "--attach", "pocket", "--port", "0", *program)
    try:
        url = serving.wait(re.compile(r"http://127\.0\.0\.1:\d+").search, 240)[0]
        models = urllib3.request("GET", f"{url}/v1/models").json()["data"]
        said = [{"role": "user", "content": QUESTION}]
        body = {"model": models[0]["id"], "messages": said}
        reply = urllib3.request("POST", f"{url}/v1/chat/completions", json=body, timeout=60)
        assert reply.status == 200 and "17" in reply.json()["choices"][0]["message"]["content"]
        for role in set(ROLES) - set(shared):  # launched with room for what attaches by default
            assert not re.search(rf"{role}: \d+ requests at a time", serving.said)
    finally:
        ended = serving.stop(seconds=60)
    assert ended == 0


def test_it_goes_as_a_whole(home: Home, up: Process, shared: dict[str, str]) -> None:
    """However it ends: killed, or in the full run at a signal."""
    own = set(re.findall(r"http://127\.0\.0\.1:\d+", up.output)) - set(shared.values())
    family = psutil.Process(up.pid).children(recursive=True)
    # guardians, launcher, scheduler and detokenizer of a server
    assert len(family) >= 5 * len(own)
    names = " ".join(word for one in family for word in one.cmdline()[:1])
    assert "sglang::scheduler" in names and "sglang::detokenizer" in names
    ended = up.stop(signal.SIGTERM if FULL else signal.SIGKILL, 30)
    assert ended == (0 if FULL else -signal.SIGKILL)
    until(lambda: not any(one.is_running() for one in family), 30)
    assert len(own) + len(shared) == len(ROLES)
    for url in own:
        with pytest.raises(urllib3.exceptions.HTTPError):
            urllib3.request("GET", f"{url}/health", retries=False, timeout=5)
    assert "up: pocket" not in home.call("launch", "--list")


# -- servers that cannot start


ALONE = pytest.mark.skipif(not FULL, reason="each imports all of SGLang: only in test-full")


@pytest.fixture
def nothing_left():
    before = psutil.Process().children(recursive=True)
    yield
    assert set(psutil.Process().children(recursive=True)) <= set(before)


def alone(**settings: object) -> Deployment:
    return Deployment("alone", {"target": Runtime(device="cpu", **settings)})


@ALONE
def test_an_unknown_flag_is_refused_by_sglang_and_named(tmp_path, nothing_left):
    wrong = alone(model="pocket:target", extra={"schedule-polcy": "lpm"})
    with pytest.raises(LaunchError) as caught:
        launch(wrong, tmp_path / "logs")
    error = caught.value
    assert error.role == "target" and "--schedule-polcy" in error.message
    assert "'extra'" in error.hint


@ALONE
def test_a_model_without_weights_ends_while_loading(tmp_path, nothing_left):
    """It dies in the second process, the scheduler, while the first waits for it."""
    model = tmp_path / "model"
    shutil.copytree(pocket.weights("draft"), model, ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(LaunchError) as caught:
        launch(alone(model=str(model)), tmp_path / "logs")
    assert caught.value.role == "target" and "weights" in caught.value.message
    assert "whole model" in caught.value.hint
