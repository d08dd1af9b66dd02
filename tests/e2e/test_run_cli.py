"""``lr-sglang run`` as its users call it, attached to real SGLang servers."""

import json
import signal
import subprocess
import sys
from collections import Counter
from functools import partial

import psutil
import pytest

from lr_sglang.sglang_api import release
from tests import FULL, ROOT, records
from tests.called import called
from tests.serving import until

QUESTION = (
    "Hats cost 8 dollars each. Lamps cost 2 dollars each. Sam orders 5 hats and 6 "
    "lamps. How many dollars is the bill?"
)
COUNT = 40 if FULL else 5


@pytest.fixture
def invoke(pocket, here):
    """The command line, from another folder."""
    return partial(called, "run", *pocket.attach)


def test_a_task_in_both_modes_leaves_whole_records(invoke, pocket, tmp_path):
    for mode in ("autoregressive", "lookahead"):
        options = ("--limit", COUNT, "--mode", mode, "--concurrency", 2, "--seed", 5)
        done = invoke("--task", "pocket", *options, "--output", tmp_path / mode)
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
        assert tokens[role]["reused"] <= tokens[role]["shareable"] <= tokens[role]["prompt"]
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


# -- lr-sglang bench


QUESTIONS = 10 if FULL else 2
MODES = ("autoregressive", "lookahead", "lossless")


def test_modes_side_by_side(pocket, tmp_path):
    samples = 2 if FULL else 1
    options = ("--modes", ",".join(MODES), "--limit", str(QUESTIONS), "--samples", str(samples))
    done = called("bench", *pocket.attach, *options, "--output", tmp_path / "out")
    made = records(tmp_path / "out")
    counts = Counter((r["question_id"], r["sample"], r["mode"]) for r in made)
    assert set(counts.values()) == {1} and len(counts) == QUESTIONS * samples * len(MODES)
    assert not any(r["error"] or r["failures"] for r in made)
    texts = {(r["question_id"], r["sample"], r["mode"]): r["text"] for r in made}
    for question, sample, mode in texts:  # at temperature 0.6
        if mode == "lossless":
            assert texts[question, sample, mode] == texts[question, sample, "autoregressive"]
    assert "Where the time went" in done.stdout and "lossless" in done.stdout
    # Caches are emptied between modes: of a new question at most the head, which all have, is
    # there.
    for record in (one for one in made if one["sample"] == 0):
        first = min(
            (b for b in record["branches"] if b["role"] == "target"), key=lambda b: b["started"]
        )
        assert first["cached"] < first["prompt"] / 2, record["mode"]


def interrupt(process):
    """Sends Ctrl-C; all that the command started must be gone at its end."""
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 3  # the guardian, the server and its scheduler at least
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "--resume --output" in err
    until(lambda: not any(one.is_running() for one in family), 30)


@pytest.mark.skipif(not FULL, reason="a server of its own: only in test-full")
@pytest.mark.timeout(600)
def test_a_simulated_acceptance_is_what_was_asked_for_and_ctrl_c_leaves_no_process(tmp_path, popen):
    layer = (
        "--token-layer",
        "standalone",
        "-o",
        "runtimes.target.token_layer.draft_model=dummy:pocket-draft",
        "-o",
        "runtimes.target.token_layer.tokens=4",
    )
    command = [
        sys.executable,
        ROOT / "cli.py",
        "bench",
        "-o",
        "bench.dummy_weights=true",
        "--modes",
        "sd",
        *layer,
    ]
    command += [
        "-o",
        "runtimes.target.token_layer.accept_length=3",
        "--max-tokens",
        "61",
        "--output",
        tmp_path / "out",
    ]
    command += ["--limit", "200"]
    process = popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: process.poll() is not None or len(records(tmp_path / "out")) >= 2, 280)
    interrupt(process)
    said = called("report", tmp_path / "out").output
    assert "was asked for, not measured" in " ".join(said.split())
    made = records(tmp_path / "out")
    assert 2 <= len(made) < 200
    # The first token is that of the prompt's own pass, and each verification gives three: two are
    # drafted.
    for record in made:
        assert record["error"] is None and record["config"]["sampling"]["temperature"] > 0
        sd = record["tokens"]["target"]["sd"]
        assert (sd["verified"], sd["accepted"]) == (20, 40)
