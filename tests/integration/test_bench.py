"""``lr-sglang bench`` in a process of its own over simulated runtimes, killed at any moment and
taken up again.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from click.testing import CliRunner

from lr_sglang.cli import cli
from tests import FULL
from tests.processes.mortal import mortals
from tests.serving import ROOT

# In a short run it is killed once; tests/integration/test_runner.py has the Ctrl-C.
KILLS = 20 if FULL else 1
QUESTIONS = 6 if FULL else 3
MODES = ("autoregressive", "lookahead", "lossless")


# In the sync schedule no answer depends on what comes first.
OPTIONS = ("--modes", ",".join(MODES), "--limit", str(QUESTIONS), "--samples", "2")
OPTIONS += ("--schedule", "sync")


@pytest.fixture(scope="module")
def attach(tmp_path_factory):
    """Options that attach to simulated servers, in processes of their own."""
    speed = ("--steps", "6", "--step-seconds", "0.02", "--judge-seconds", "0.005", "--alpha", "0.6")
    with mortals(tmp_path_factory.mktemp("servers"), *speed) as runtimes:
        yield [word for role, one in runtimes.items() for word in (f"--{role}", one.url)]


def start(folder, attach):
    """The benchmark, which goes on where there are records."""
    more = ["--resume"] if whole(folder) else []
    return subprocess.Popen(
        [sys.executable, ROOT / "cli.py", "bench", *OPTIONS, *attach, "--output", folder, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def whole(folder):
    """Every complete line of every file of records."""
    return [
        line
        for path in sorted(folder.glob("*/records.jsonl"))
        for line in path.read_bytes().split(b"\n")[:-1]
    ]


def samples(folder):
    """The text of each sample, by its name."""
    records = [json.loads(line) for line in whole(folder)]
    assert all(record["error"] is None for record in records)
    names = [
        (r["question_id"], r["sample"], r["mode"], r["config"]["sampling"]["temperature"])
        for r in records
    ]
    assert not [name for name, count in Counter(names).items() if count > 1]
    assert all(record["seeded"] for record in records)
    return dict(zip(names, (record["text"] for record in records), strict=True))


@pytest.mark.timeout(1500 if FULL else 600)
def test_killed_again_and_again_it_makes_the_same(tmp_path, attach):
    arguments = ["bench", *OPTIONS, *attach, "--output", str(tmp_path / "undisturbed")]
    undisturbed = CliRunner().invoke(cli, arguments)
    assert undisturbed.exit_code == 0, undisturbed.output
    wanted = samples(tmp_path / "undisturbed")
    assert len(wanted) == QUESTIONS * 2 * len(MODES)
    chance, folder = random.Random(os.environ.get("SEED", "7")), tmp_path / "killed"
    killed, lost = 0, 0
    for number in range(KILLS):
        process = start(folder, attach)
        before = whole(folder)
        if number % 4 == 3:  # while it starts
            time.sleep(chance.uniform(0, 3))
        else:
            least = len(before) + max(1, (len(wanted) - len(before)) // (KILLS - number + 1) - 1)
            deadline = time.monotonic() + 120
            while (
                len(whole(folder)) < least
                and process.poll() is None
                and time.monotonic() < deadline
            ):
                time.sleep(0.003)
            time.sleep(chance.uniform(0, 0.1))
        killed += process.poll() is None
        gently = number == 1  # Ctrl-C keeps what is finished, and says how to go on
        process.send_signal(signal.SIGINT if gently else signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        kept = whole(folder)
        if gently:
            said = " ".join(err.split())
            assert process.returncode == 130
            assert f"samples are kept; the same options with --resume --output {folder}" in said
            # one more than is said, if the signal came while it was written
            assert any(f"{n} of {len(wanted)} samples" in said for n in (len(kept), len(kept) - 1))
        assert not [
            line for line in before if line not in kept
        ]  # what was there stays, to the byte
        assert all(json.loads(line)["text"] for line in kept)
        lost += sum(
            path.read_bytes()[-1:] not in (b"", b"\n") for path in folder.glob("*/records.jsonl")
        )
    assert killed >= max(1, KILLS - 1)
    assert len(whole(folder)) < len(wanted) and lost <= KILLS
    arguments = ["bench", *OPTIONS, *attach, "--output", str(folder), "--resume"]
    resumed = CliRunner().invoke(cli, arguments)
    assert resumed.exit_code == 0, resumed.output
    assert "Where the time went" in resumed.stdout
    assert samples(folder) == wanted
