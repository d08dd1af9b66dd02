"""``lr-sglang run`` as its users call it, attached to real SGLang servers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lr_sglang.cli import cli
from lr_sglang.sglang_api import release
from tests.e2e.conftest import full

ROOT = Path(__file__).parents[2]
QUESTION = (
    "Hats cost 8 dollars each. Lamps cost 2 dollars each. Sam orders 5 hats and 6 "
    "lamps. How many dollars is the bill?"
)
COUNT = 40 if full else 5


@pytest.fixture
def invoke(pocket, tmp_path, monkeypatch):
    """The command line, from another folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        done = CliRunner().invoke(cli, ["run", *pocket.attach, *map(str, arguments)])
        assert "Traceback" not in done.stderr
        return done

    return run


def records(folder):
    return [json.loads(line) for line in (folder / "records.jsonl").read_text("utf-8").splitlines()]


def test_one_question_shows_its_steps(invoke, tmp_path):
    done = invoke(QUESTION)
    assert done.exit_code == 0, done.stderr
    marks = {line[0] for line in done.stdout.splitlines()}
    assert marks <= {"+", "~", "|"} and marks
    assert "alpha" in done.stderr
    (file,) = tmp_path.glob("runs/question_*/records.jsonl")
    (record,) = records(file.parent)
    shown = "".join(line[2:].strip() for line in done.stdout.splitlines()).replace(" ", "")
    assert shown == record["text"].replace("\n", "").replace(" ", "")
    assert str(file.relative_to(tmp_path)) in done.stderr


def test_a_task_in_both_modes_leaves_whole_records(invoke, pocket, tmp_path):
    for mode in ("autoregressive", "lookahead"):
        options = ("--limit", COUNT, "--mode", mode, "--concurrency", 2, "--seed", 5)
        done = invoke("--task", "pocket", *options, "--output", tmp_path / mode)
        assert done.exit_code == 0, done.stderr
        assert mode in done.stdout
        made = records(tmp_path / mode)
        assert len(made) == COUNT
        for record in made:
            whole(record, mode)
            cache = {"0.5.16": "RadixCache", "0.5.23": "UnifiedRadixCache (RustUnifiedTreeCore)"}
            assert record["versions"]["prefix_cache"] == cache.get(
                release.version(), record["versions"]["prefix_cache"]
            )
    written = json.loads((tmp_path / "lookahead" / "run.json").read_text())
    assert written["placement"]["target"]["url"] == pocket.fleet.urls["target"]
    assert {record["seed"] for record in made} == {5}
    assert any(record["accepted"] for record in made)
    found = [record["false_accepts"] for record in made]
    assert all(one["accepted"] == 0 and one["asked"] >= 20 for one in found)


def whole(record, mode):
    """Whether a record says all it should, and says it consistently."""
    assert (record["mode"], record["error"], record["failures"], record["seeded"]) == (
        mode,
        None,
        {},
        True,
    )
    assert record["finish"] == "stop"
    assert "".join(step["text"] for step in record["steps"]) == record["text"]
    assert record["correct"] == (record["answer"] == record["gold"])
    assert 0 < record["seconds"] <= record["drained"]
    tokens = record["tokens"]
    assert tokens["used"] == sum(step["tokens"] for step in record["steps"]) <= tokens["generated"]
    assert all(branch["outcome"] and branch["ended"] for branch in record["branches"])
    for role in ("target", "draft", "judge"):
        assert tokens[role]["cached"] <= tokens[role]["shareable"] <= tokens[role]["prompt"]
    assert record["config"]["runtimes"]["target"]["model"]
    if mode == "autoregressive":
        assert record["alpha"] is None and tokens["wasted"] == 0
        assert record["config"]["lookahead"] is None
    else:
        assert record["judged"] and {step["outcome"] for step in record["steps"]} <= {
            "accepted",
            "corrected",
            "bonus",
        }
        assert record["config"]["lookahead"]["depth"] == 6


def test_json_is_all_there_is_on_standard_output(pocket, invoke, tmp_path):
    """Of a process of its own, which may be warned by what it imports."""
    command = [sys.executable, ROOT / "cli.py", "run", *pocket.attach, QUESTION, "--json"]
    done = subprocess.run(
        [*command, "--temperature", "0", "--verifier", "exact"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    record = json.loads(done.stdout)
    assert done.stderr == ""
    plain = json.loads(
        invoke(QUESTION, "--json", "--temperature", 0, "--mode", "autoregressive").stdout
    )
    assert plain["ids_digest"] == record["ids_digest"]
    assert plain["text"] == record["text"]


def test_a_server_that_is_not_there_is_a_named_error(invoke, tmp_path):
    done = invoke(QUESTION, "--target", "http://127.0.0.1:9")
    assert done.exit_code == 1
    assert "Error: target: " in done.stderr
    assert not (tmp_path / "runs").exists()
