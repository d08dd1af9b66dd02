"""The examples run, on the session's servers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lr_sglang.config import ROLES
from tests.e2e.conftest import Pocket

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_asking_from_python(pocket: Pocket, tmp_path: Path) -> None:
    deployment = tmp_path / "running.toml"
    runtimes = "".join(f'[runtimes.{role}]\nurl = "{pocket.fleet.urls[role]}"\n' for role in ROLES)
    deployment.write_text(f'name = "running"\njudge_prompt = "pocket"\n{runtimes}')
    question = "Jack starts with 5 stickers. Emma brings 2 boxes with 6 stickers each. How many has Jack?"
    command = [sys.executable, EXAMPLES / "ask.py", question, "--deployment", deployment, "--logs", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "\\boxed{" in done.stdout
    assert "tokens" in done.stdout.splitlines()[-1]
