"""The examples run, on the session's servers: each as the function it is, for a process would
import SGLang again.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from lr_sglang.config import ROLES
from tests.e2e.conftest import Pocket

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = (
    "Jack starts with 5 stickers. Emma brings 2 boxes with 6 stickers each. How many has Jack?"
)
full = os.environ.get("LR_SGLANG_FULL") == "1"


@pytest.fixture
def running(pocket: Pocket, tmp_path: Path) -> Path:
    """A deployment file of the servers that are up: greedy, in the schedule in which no draft comes
    too late.
    """
    path = tmp_path / "running.toml"
    runtimes = "".join(f'[runtimes.{role}]\nurl = "{pocket.fleet.urls[role]}"\n' for role in ROLES)
    how = '[lookahead]\nschedule = "sync"\n[sampling]\ntemperature = 0.0\n'
    path.write_text(f'name = "running"\njudge_prompt = "pocket"\n{runtimes}{how}')
    return path


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("ask", [QUESTION], "tokens"),
        ("stream", [QUESTION, "--compare"], "by the target alone"),
        ("events", [QUESTION], "ended 1"),
        ("custom_program", [QUESTION], "{'lookahead': 2}"),
        ("unchanged_program", [QUESTION], "'select': 1"),
        ("batch", [str(EXAMPLES / "questions.jsonl")], " right"),
        ("custom_verifier", [QUESTION], "['"),
        ("composed_verifier", [QUESTION], "accepted"),
    ],
)
def test_an_example(
    running: Path,
    name: str,
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(module(name).main, [*arguments, "--deployment", str(running)])
    assert done.exit_code == 0, done.output
    assert said in done.output
    assert "\\boxed{" in done.output or name == "batch"


def test_every_example_is_run() -> None:
    source = Path(__file__).read_text("utf-8")
    assert not [path.stem for path in EXAMPLES.glob("*.py") if path.stem not in source]
