"""Many samples: at a time, in order, stopped, killed and gone on with. The real runner over
scripted runtimes.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
from lr_sglang.config import Lookahead, Sampling
from lr_sglang.errors import ConfigError, RuntimeDown
from lr_sglang.tasks import Question
from tests import FULL, plan
from tests.scripted import deployment
from tests.scripted_cli import transports
from tests.serving import until

ROOT = Path(__file__).parents[2]
QUESTIONS = [Question(f"q{n}", f"question {n}?", "17") for n in range(8)]
EXACT = Plan().with_settings(lookahead=Lookahead(verifier="exact"))


def runner(doubles, concurrency=1, given=EXACT, **more):
    return Runner(deployment(**doubles).roles, given, concurrency, **more)


def answered(records):
    return [(r["question_id"], r["sample"], r["mode"]) for r in records]


# -- in one process


def test_every_sample_has_one_record():
    work = plan(QUESTIONS, ("autoregressive", "lookahead"), 2)
    running = runner(transports(), 4)
    records = list(running.run(work))
    assert sorted(answered(records)) == sorted(item.key for item in work)
    assert all(r["answer"] == "17" and r["error"] is None for r in records)
    texts = {r["text"] for r in records}
    assert len(texts) == 1  # the exact verifier changes nothing


@pytest.mark.parametrize("concurrency", [1, 3])
def test_as_many_at_a_time_as_asked_for(concurrency):
    doubles = transports(0.05)
    running = runner(doubles, concurrency)
    assert len(list(running.run(plan(QUESTIONS, ("autoregressive",))))) == len(QUESTIONS)
    assert doubles["target"].most == concurrency


def test_the_seed_makes_a_run_another_and_the_sample_too():
    def seeds(seed):
        running = runner(transports(), given=EXACT.with_settings(sampling=Sampling(seed=seed)))
        records = list(running.run(plan(QUESTIONS[:2], ("autoregressive",), 2)))
        return [r["branches"][0]["seed"] for r in records]

    assert seeds(1) == seeds(1)
    assert not set(seeds(1)) & set(seeds(2))
    assert len(set(seeds(1))) == 4


def test_the_target_gone_ends_the_run_at_once():
    doubles = transports(0.01)
    doubles["target"].fail = lambda text: RuntimeDown("gone", role="target") if text else None
    running = runner(doubles, 2)
    with pytest.raises(RuntimeDown, match="gone"):
        list(running.run(plan(QUESTIONS, ("lookahead",))))
    assert not any(double.running for double in doubles.values())


def test_what_the_deployment_cannot_do_is_said_before_anything_runs():
    running = runner({"target": transports()["target"]})
    with pytest.raises(ConfigError, match="needs a draft"):
        list(running.run(plan(QUESTIONS, ("lookahead",))))
    no_judge = {role: double for role, double in transports().items() if role != "judge"}
    running = runner(no_judge, given=Plan())
    with pytest.raises(ConfigError, match="needs a judge"):
        list(running.run(plan(QUESTIONS, ("lookahead",))))


@pytest.mark.parametrize("mode", ["autoregressive", "lookahead"])
def test_stopping_frees_the_runtimes_at_once(mode):
    doubles = transports(60.0)

    def interrupted():
        if len(doubles["target"].running) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(runner(doubles, 3).run(plan(QUESTIONS, (mode,)), interrupted))
    assert not any(double.running for double in doubles.values())
    assert doubles["target"].aborted >= 3


def test_a_bug_in_a_sample_reaches_the_caller():
    def fail(item, step):
        raise ZeroDivisionError

    running = runner(transports(), on_step=fail)
    with pytest.raises(ZeroDivisionError):
        list(running.run(plan(QUESTIONS, ("lookahead",))))


# -- in a process of its own, which is killed


def start(folder, *more, seconds="0.1", limit=40):
    """``seconds`` as ``tests.scripted_cli`` takes it. Most of a start is importing SGLang."""
    command = [
        sys.executable,
        "-m",
        "tests.scripted_cli",
        "run",
        "--task",
        "pocket",
        "--limit",
        str(limit),
    ]
    return subprocess.Popen(
        [*command, "--output", str(folder), *more],
        cwd=ROOT,
        env={**os.environ, "SECONDS": seconds},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(folder):
    path = folder / "records.jsonl"
    return path.read_bytes().split(b"\n") if path.exists() else [b""]


def wait_for(folder, records, process):
    until(lambda: len(lines(folder)) > records or process.poll() is not None, 120, 0.01)
    assert len(lines(folder)) > records, process.communicate()


def finish(folder, limit=40, *more):
    """Goes on with a run to its end; returns the ids it answered."""
    process = start(folder, "--resume", *more, seconds="0", limit=limit)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, out + err
    return [json.loads(line)["question_id"] for line in lines(folder)[:-1]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM] if FULL else [signal.SIGINT])
def test_ctrl_c_leaves_an_output_that_can_be_gone_on_with(tmp_path, number):
    process = start(tmp_path, "--concurrency", "2", seconds="0.02,20,60")
    wait_for(tmp_path, 2, process)
    time.sleep(1.0)  # two samples are in hand, which would take minutes
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 8.0
    assert process.returncode == 128 + number, out + err
    assert "Traceback" not in err
    kept = len(lines(tmp_path)) - 1
    assert f"{kept} of 40 samples are kept" in err
    assert "--resume --output" in err
    if FULL:  # the one killed above goes on
        ids = finish(tmp_path)
        assert len(ids) == len(set(ids)) == 40
