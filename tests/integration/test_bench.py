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
from pathlib import Path

import pytest

from tests.processes.mortal import mortals

ROOT = Path(__file__).parents[2]
full = os.environ.get("LR_SGLANG_FULL") == "1"
KILLS = 20 if full else 2
QUESTIONS = 6 if full else 3
MODES = ("autoregressive", "lookahead", "lossless")


@pytest.fixture(scope="module")
def attach(tmp_path_factory):
    """Options that attach to simulated servers, in processes of their own."""
    speed = ("--steps", "6", "--step-seconds", "0.02", "--judge-seconds", "0.005", "--alpha", "0.6")
    with mortals(tmp_path_factory.mktemp("servers"), *speed) as runtimes:
        yield [word for role, one in runtimes.items() for word in (f"--{role}", one.url)]


def start(folder, attach, *more):
    # In the sync schedule no answer depends on what comes first.
    options = (
        "--modes",
        ",".join(MODES),
        "--limit",
        str(QUESTIONS),
        "--samples",
        "2",
        "--schedule",
        "sync",
    )
    command = [
        sys.executable,
        ROOT / "cli.py",
        "bench",
        *options,
        *attach,
        "--output",
        str(folder),
        *more,
    ]
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("LR_SGLANG_BENCH")
    }
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
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


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    return out, err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, attach):
    folder = tmp_path_factory.mktemp("bench") / "undisturbed"
    out, _ = finish(start(folder, attach))
    assert "Where the time went" in out
    return folder


def test_every_mode_answers_every_question(undisturbed):
    found = samples(undisturbed)
    assert len(found) == QUESTIONS * 2 * 4  # lossless beside autoregressive at temperature 0
    assert Counter((mode, hot > 0) for _, _, mode, hot in found) == {
        ("autoregressive", True): QUESTIONS * 2,
        ("autoregressive", False): QUESTIONS * 2,
        ("lookahead", True): QUESTIONS * 2,
        ("lossless", False): QUESTIONS * 2,
    }
    about = json.loads((undisturbed / "run.json").read_text("utf-8"))
    assert about["order"]["servers"] == "together"
    assert len(about["order"]["stretches"][0]["first"]) == min(24, len(found))


@pytest.mark.timeout(1500 if full else 300)
def test_killed_again_and_again_it_makes_the_same(tmp_path, attach, undisturbed):
    chance, folder, wanted = (
        random.Random(os.environ.get("SEED", "7")),
        tmp_path / "killed",
        samples(undisturbed),
    )
    killed, lost = 0, 0
    for number in range(KILLS):
        process = start(folder, attach, *(["--resume"] if whole(folder) else []))
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
    assert killed >= KILLS - 1
    assert len(whole(folder)) < len(wanted) and lost <= KILLS
    out, _ = finish(start(folder, attach, *(["--resume"] if whole(folder) else [])))
    assert "Where the time went" in out
    assert samples(folder) == wanted
