"""A target in a larger body, in float32: at temperature 0 the same answers in every mode, layer and way of loading."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import full

ROOT = Path(__file__).parents[2]
LAYER = ("--token-layer", "target=standalone", "--sd-draft-model", "target=pocket:draft")
BODY = "pocket:target@512x1024x28"


def answers(folder: Path, *options: str, questions: int, deployment: str = "pocket") -> dict[str, list[str]]:
    """The texts of every mode, in the order of the questions."""
    command = [sys.executable, ROOT / "cli.py", "run", "--deployment", deployment, "--target", BODY, "--task", "pocket"]
    command += ["--temperature", "0", "--limit", str(questions), "--output", folder, *options]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for line in (folder / "records.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        found.setdefault(record["mode"], []).append(record["text"])
    return found


@pytest.mark.skipif(not full, reason="minutes: only in test-full")
@pytest.mark.timeout(1800)
def test_a_body_answers_the_same_in_both_layers_and_computed_in_memory(tmp_path: Path) -> None:
    plain = answers(tmp_path / "plain", "--mode", "autoregressive", "--mode", "lossless", questions=8)
    own = tmp_path / "computed.toml"
    own.write_text('[runtimes.target]\nmodel = "x"\nextra = { load-format = "private" }\n', "utf-8")
    computed = answers(tmp_path / "computed", "--mode", "autoregressive", questions=8, deployment=str(own))
    layered = answers(tmp_path / "layered", "--mode", "sd", "--mode", "lossless", *LAYER, questions=8)
    texts = plain["autoregressive"]
    assert len(texts) == 8 and all("boxed" in text for text in texts)
    assert plain["lossless"] == texts and computed["autoregressive"] == texts
    assert layered["sd"] == texts and layered["lossless"] == texts
