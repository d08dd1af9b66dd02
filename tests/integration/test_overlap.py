"""Every documented way to ask looks ahead: the target's branches overlap in time. Over simulated
runtimes that run as many requests at a time as ``lr-sglang launch --concurrency 1`` would let them,
by commands that allow 8 answers.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lr_sglang as lr
from lr_sglang.config import Deployment
from lr_sglang.runtimes import Fleet, connect, launch, launched, load_deployment, override_all
from tests import FULL, overlap, records
from tests.called import called
from tests.processes.mortal import mortals
from tests.serving import HTTP, serving
from tests.stub import Router, served

QUESTION = "Simulated question 1?"
SLOTS, STEP = 7, 0.1
PROGRAM = """
import sglang as sgl

import lr_sglang as lr


@sgl.function
def once(s, messages):
    lr.converse(s, messages)
    s += sgl.gen("answer", max_tokens=400)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("home")
        patch.setenv("XDG_STATE_HOME", str(path / "state"))
        patch.chdir(path)
        (path / "mine.py").write_text(PROGRAM)
        yield path


@pytest.fixture(scope="module")
def fleet(home: Path) -> Iterator[Fleet]:
    """Simulated servers, which 'lr-sglang launch' seems to keep up under the name of 'here'."""
    speed = ("--steps", "8", "--step-seconds", str(STEP), "--judge-seconds", ".01", "--alpha", "1")
    with mortals(home, *speed, "--slots", str(SLOTS)) as runtimes:
        urls = {role: one.url for role, one in runtimes.items()}
        deployment = override_all(load_deployment(), urls).replace(name="here")
        with launch(deployment, home) as found:
            launched.write(launched.describe_launched(found, ["lookahead"], False, "now"))
            yield found
            launched.remove("here")


@contextmanager
def routed(url: str) -> Iterator[str]:
    """A router before one worker."""
    with served(Router([SimpleNamespace(url=url)])) as router:
        yield router.url


def options(urls: Mapping[str, str]) -> list[str]:
    """That attach to servers by their addresses."""
    return [word for role, url in urls.items() for word in (f"--{role}", url)]


@pytest.mark.parametrize("way", ["servers", "url", "attach", "program", "router"])
def test_a_run(home: Path, fleet: Fleet, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(deployment: Deployment, *_: object) -> Fleet:
        assert (deployment.runtimes["target"].max_running_requests or 0) >= SLOTS
        return Fleet(deployment, fleet.urls, fleet.tokenizers)

    with routed(fleet.urls["target"]) as router:
        given = {
            "servers": [],
            "url": options(fleet.urls),
            "attach": ["--attach", "here"],
            "program": ["--attach", "here", "--program", "mine.py:once"],
            "router": options({**fleet.urls, "target": router}),
        }[way]
        if way == "servers":
            monkeypatch.setattr(connect, "launch", start)
        folder = home / f"out-{way}"
        called("run", QUESTION, "--concurrency", 8, *given, "--output", folder)
    (record,) = records(folder)
    assert record["mode"] == "lookahead" and overlap.of_record(record)


@pytest.mark.parametrize("program", [None, "mine.py:once"])
def test_from_python(fleet: Fleet, program: str | None) -> None:
    with lr.deployment(attach="here") as d:
        one = lr.solve(QUESTION, deployment=d, program=program)
    assert overlap.of_record(one.record)


@pytest.mark.parametrize("way", ["attach", "url"] if FULL else ["attach"])
def test_the_endpoint_looks_ahead_and_its_plain_decoding_does_not(
    home: Path, fleet: Fleet, way: str
) -> None:
    given = ["--attach", "here"] if way == "attach" else []
    with serving(home, {} if given else fleet.urls, *given, "--depth", 9) as endpoint:

        def ask(mode: str) -> dict[str, Any]:
            body = {
                "model": endpoint.told["model"],
                "messages": [{"role": "user", "content": QUESTION}],
            }
            body |= {"lookahead": {"mode": mode, "trace": True}}
            reply = HTTP.post(f"{endpoint.url}/v1/chat/completions", json=body, timeout=60)
            return dict(reply.raise_for_status().json()["lookahead"])

        assert overlap.of_trace(ask("lookahead")["trace"])
        assert not overlap.of_trace(ask("autoregressive")["trace"])
