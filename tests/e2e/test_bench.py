"""``lr-sglang bench`` on real SGLang servers: the pocket models, and shapes of random weights."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from lr_sglang.cli import cli
from tests.e2e.conftest import full
from tests.e2e.test_interrupt import interrupted
from tests.serving import until

ROOT = Path(__file__).parents[2]
QUESTIONS = 10 if full else 2
MODES = ("autoregressive", "lookahead", "lossless")


def records(folder):
    lines = [
        line
        for path in sorted(folder.glob("*/records.jsonl"))
        for line in path.read_bytes().split(b"\n")[:-1]
    ]
    return [json.loads(line) for line in lines]


@pytest.fixture
def bench(pocket):
    def start(*arguments):
        command = [sys.executable, ROOT / "cli.py", "bench", *pocket.attach, *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


def test_modes_side_by_side_stopped_and_taken_up_again(bench, tmp_path):
    options = (
        "--modes",
        ",".join(MODES),
        "--limit",
        QUESTIONS,
        "--samples",
        2,
        "--output",
        tmp_path / "out",
    )
    process = bench(*options)
    deadline = time.monotonic() + 120
    while (
        len(records(tmp_path / "out")) < 3
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = records(tmp_path / "out")
    assert len(before) >= 3
    out, err = bench(*options, "--resume").communicate(timeout=300)
    assert "Traceback" not in err and "samples are done already" in err
    made = records(tmp_path / "out")
    assert not [one for one in before if one not in made]
    counts = Counter(
        (r["question_id"], r["sample"], r["mode"], r["config"]["sampling"]["temperature"])
        for r in made
    )
    assert set(counts.values()) == {1} and len(counts) == QUESTIONS * 2 * 4
    assert not any(r["error"] or r["failures"] for r in made)
    # the lossless mode keeps its promise beside the baseline of the same temperature
    greedy = {
        (r["question_id"], r["sample"], r["mode"]): r["text"]
        for r in made
        if not r["config"]["sampling"]["temperature"]
    }
    for question, sample, mode in greedy:
        assert greedy[question, sample, mode] == greedy[question, sample, "autoregressive"]
    assert "Where the time went" in out and "lossless" in out
    # Caches are emptied between modes: of a new question at most the head, which all have, is
    # there.
    for record in (one for one in made if one["sample"] == 0):
        first = min(
            (b for b in record["branches"] if b["role"] == "target"), key=lambda b: b["started"]
        )
        assert first["cached"] < first["prompt"] / 2, record["mode"]


@pytest.mark.timeout(960 if full else 300)
def test_random_weights_by_the_script(tmp_path):
    """scripts/gpu_campaign.sh on small shapes and no GPU."""
    small = {"ALPHA": "0.1,0.9", "DEPTHS": "1,3", "LIMIT": "1", "TOKENS": "128", "FLAGS": ""}
    small |= {
        "CONCURRENCY": "1,4",
        "SD_TOKENS": "2",
        "BODIES": "pocket-body",
        "WEAK": "pocket:draft-60",
    }
    small |= {"BATCHES": "1,4", "PREFIXES": "512", "MINUTES": "15"} if full else {"ITEMS": "depth"}
    programs = {"LR_SGLANG": "lr-sglang", "PYTHON": sys.executable}
    environ = {
        **os.environ,
        **small,
        **programs,
        "SHAPES": "pocket-target,pocket-draft,pocket-judge",
    }
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    command = ["bash", ROOT / "scripts" / "gpu_campaign.sh", tmp_path / "gpu"]
    limit = 920 if full else 280
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=limit, check=False
    )
    said = (tmp_path / "gpu" / "depth.txt").read_text("utf-8")
    assert done.returncode == 0 and "ended with status" not in done.stdout, done.stdout + said
    assert "weights are random" in said and "Does looking ahead pay" in said
    told = json.loads((tmp_path / "gpu" / "depth.json").read_text("utf-8"))
    assert "random weights" in told["warning"]
    ahead = {
        (g["settings"]["lookahead.verifier"], g["settings"]["lookahead.depth"]): g
        for g in told["groups"][1:]
    }
    assert set(ahead) == {(f"oracle:{a}", d) for a in ("0.1", "0.9") for d in (1, 3)}
    assert ahead["oracle:0.9", 3]["alpha"]["value"] > ahead["oracle:0.1", 3]["alpha"]["value"]
    assert all(
        g["judge_seconds"]["value"] > 0 for g in ahead.values()
    )  # the judge was really asked
    assert {path.name for path in (tmp_path / "gpu" / "plots-depth").glob("*.png")} >= {
        "by_acceptance.png",
        "by_depth.png",
    }
    made = records(tmp_path / "gpu" / "depth")
    lengths = Counter(
        step["tokens"]
        for record in made
        for step in record["steps"]
        if record["mode"] == "lookahead"
    )
    assert lengths.most_common(1)[0][0] == 32


def test_a_simulated_acceptance_is_what_was_asked_for_and_ctrl_c_leaves_no_process(tmp_path):
    """In the full run it goes on to its end, and test_interrupt.py interrupts another."""
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
    command += ["--limit", "1" if full else "200"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if full:
        said, err = process.communicate(timeout=280)
        assert process.returncode == 0, err
    else:
        until(lambda: process.poll() is not None or len(records(tmp_path / "out")) >= 2, 280)
        interrupted(process)
        said = CliRunner().invoke(cli, ["report", str(tmp_path / "out")]).output
    assert "was asked for, not measured" in " ".join(said.split())
    made = records(tmp_path / "out")
    assert len(made) == 1 if full else 2 <= len(made) < 200
    # The first token is that of the prompt's own pass, and each verification gives three: two are
    # drafted.
    for record in made:
        assert record["error"] is None and record["config"]["sampling"]["temperature"] > 0
        sd = record["tokens"]["target"]["sd"]
        assert (sd["verified"], sd["accepted"]) == (20, 40)
