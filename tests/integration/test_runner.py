"""Many samples: at a time, in order, stopped, killed and gone on with. The real runner over
scripted runtimes.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
from lr_sglang.config import Lookahead, Sampling
from lr_sglang.engine.server_facts import FedLayer
from lr_sglang.errors import ConfigError, RuntimeDown
from lr_sglang.tasks import Question
from tests import FULL, ROOT, plan
from tests.scripted import deployment
from tests.scripted_cli import transports
from tests.serving import until

QUESTIONS = [Question(f"q{n}", f"question {n}?", "17") for n in range(8)]
EXACT = Plan().with_settings(lookahead=Lookahead(verifier="exact"))


def ran(
    doubles, modes=("lookahead",), concurrency=1, samples=1, given=EXACT, idle=lambda: None, **more
):
    """The records of all questions."""
    runner = Runner(deployment(**doubles).roles, given, concurrency, **more)
    return list(runner.run(plan(QUESTIONS, modes, samples), idle))


# -- in one process


@pytest.mark.parametrize("concurrency", [1, 3])
def test_as_many_at_a_time_as_asked_for(concurrency):
    doubles = transports(0.05)
    assert len(ran(doubles, ("autoregressive",), concurrency)) == len(QUESTIONS)
    assert doubles["target"].most == concurrency


def test_the_seed_makes_a_run_another_and_the_sample_too():
    def seeds(seed):
        given = EXACT.with_settings(sampling=Sampling(seed=seed))
        records = ran(transports(), ("autoregressive",), samples=2, given=given)
        return [r["branches"][0]["seed"] for r in records]

    assert seeds(1) == seeds(1)
    assert not set(seeds(1)) & set(seeds(2))
    assert len(set(seeds(1))) == 2 * len(QUESTIONS)


def test_the_target_gone_ends_the_run_at_once():
    doubles = transports(0.01)
    doubles["target"].fail = lambda text: RuntimeDown("gone", role="target") if text else None
    with pytest.raises(RuntimeDown, match="gone"):
        ran(doubles, concurrency=2)
    assert not any(double.running for double in doubles.values())


@pytest.mark.parametrize(("lacks", "given"), [("draft", EXACT), ("judge", Plan())])
def test_what_the_deployment_cannot_do_is_said_before_anything_runs(lacks, given):
    doubles = {role: double for role, double in transports().items() if role != lacks}
    with pytest.raises(ConfigError, match=f"needs a {lacks}"):
        ran(doubles, given=given)


def test_sd_is_sglangs_own_speculation_and_not_that_of_a_fed_target():
    doubles = transports()
    doubles["target"].fed = FedLayer(5, "seeds")
    doubles["target"].token_layer = "NGRAM"
    with pytest.raises(ConfigError, match="mode sd: the target's token layer is fed"):
        ran(doubles, ("sd",))
    assert len(ran(doubles, ("sd",), guesses=True)) == len(QUESTIONS)


def test_a_target_with_a_token_layer_of_its_own_writes_a_lossless_answer_alone():
    """As ``sd``, in one request; a mode that looks ahead with the exact verifier does so there."""
    doubles = transports()
    doubles["target"].token_layer = "STANDALONE"
    modes = ("sd", "lossless", "lookahead+sd")
    made = ran(doubles, modes)
    sd, lossless, ahead = ([one for one in made if one["mode"] == mode] for mode in modes)
    digests = ([one["ids_digest"] for one in each] for each in (sd, lossless, ahead))
    assert all(each == [one["ids_digest"] for one in sd] for each in digests)
    for one in lossless:
        assert (one["tokens"]["target"]["calls"], one["tokens"]["draft"]["calls"]) == (1, 0)
        assert "STANDALONE" in one["alone"] and one["lossless"] == "text"
    for one in ahead:
        assert one["judged"] and not one["alone"]


@pytest.mark.parametrize("mode", ["autoregressive", "lookahead"])
def test_stopping_frees_the_runtimes_at_once(mode):
    doubles = transports(60.0)

    def interrupted():
        if len(doubles["target"].running) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ran(doubles, (mode,), 3, idle=interrupted)
    assert not any(double.running for double in doubles.values())
    assert doubles["target"].aborted >= 3


def test_a_bug_in_a_sample_reaches_the_caller():
    def fail(item, step):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ran(transports(), on_step=fail)


# -- in a process of its own, which is killed


def start(popen, folder, *more, seconds):
    """``seconds`` as ``tests.scripted_cli`` takes it. Most of a start is importing SGLang."""
    command = [
        sys.executable,
        "-m",
        "tests.scripted_cli",
        "run",
        "--task",
        "pocket",
        "--limit",
        "40",
    ]
    return popen(
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM] if FULL else [signal.SIGINT])
def test_ctrl_c_leaves_an_output_that_can_be_gone_on_with(tmp_path, popen, number):
    process = start(popen, tmp_path, "--concurrency", "2", seconds="0.02,20,60")
    until(lambda: len(lines(tmp_path)) > 2 or process.poll() is not None, 120, 0.01)
    assert len(lines(tmp_path)) > 2, process.communicate()
    time.sleep(1.0)  # two samples are in hand, which would take minutes
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, out + err
    assert "Traceback" not in err
    kept = len(lines(tmp_path)) - 1
    assert f"{kept} of 40 samples are kept" in err
    assert "--resume --output" in err
    if FULL:  # the one killed above goes on
        process = start(popen, tmp_path, "--resume", seconds="0")
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, out + err
        ids = [json.loads(line)["question_id"] for line in lines(tmp_path)[:-1]]
        assert len(ids) == len(set(ids)) == 40
