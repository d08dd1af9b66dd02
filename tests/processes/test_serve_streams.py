"""Very many streams open at once over simulated runtimes: a thousand with LR_SGLANG_FULL=1, a tenth
of them without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import psutil

from lr_sglang.cli.endpoint import _allow_files
from tests.serving import ROOT, Truth, get, serving, simulating
from tests.simulated.model import Model

FULL = os.environ.get("LR_SGLANG_FULL") == "1"
STREAMS, STEP_SECONDS, OPENED = (
    (1000, 20.0, 10.0) if FULL else (100, 3.0, 1.5)
)  # the latter: seconds to open them in
STEPS, TOKENS = 2, 24
# first pieces, in step times; a machine that is busy with other tests takes its own time for short
# steps
LATEST = 1.2


def test_streams_open_at_once(tmp_path, record_property, capsys):
    _allow_files()  # as many for the runtimes and the clients, too
    look = (
        "--steps",
        STEPS,
        "--step-tokens",
        TOKENS,
        "--step-seconds",
        STEP_SECONDS,
        "--judge-seconds",
        0.2,
    )
    places = (
        "--concurrency",
        STREAMS,
        "--queue",
        0,
        "--depth",
        3,
        "--mode",
        "lookahead",
    )
    who = [{"name": f"stream {i}", "after": i * OPENED / STREAMS} for i in range(STREAMS)]
    threads = memory = 0
    most = 0.0
    used = {"clients": 0.0, "runtimes": 0.0, "endpoint": 0.0}  # seconds of CPU
    with (
        simulating(tmp_path, *look) as runtimes,
        serving(tmp_path, runtimes.urls, *places) as endpoint,
    ):
        plan = {
            "url": endpoint.url,
            "model": endpoint.told["model"],
            "seconds": 600,
            "questions": 1,
            "clients": who,
        }
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        with (
            (tmp_path / "plan.json").open() as given,
            (tmp_path / "answers.jsonl").open("w+") as told,
        ):
            crowd = subprocess.Popen(
                [sys.executable, "-m", "tests.clients"], cwd=ROOT, stdin=given, stdout=told
            )
            try:
                while crowd.poll() is None:
                    metrics = get(f"{endpoint.url}/metrics").text.splitlines()
                    gauges = dict(
                        line.rsplit(" ", 1) for line in metrics if not line.startswith("#")
                    )
                    most = max(most, float(gauges["lr_sglang_answers_running"]))
                    parts = [
                        psutil.Process(endpoint.pid),
                        *psutil.Process(endpoint.pid).children(recursive=True),
                    ]
                    threads = max(threads, *(part.num_threads() for part in parts))
                    memory = max(memory, sum(part.memory_full_info().pss for part in parts))
                    used |= {
                        "clients": _seconds([psutil.Process(crowd.pid)]),
                        "endpoint": _seconds(parts),
                    }
                    used["runtimes"] = _seconds([psutil.Process(runtimes.pid)])
                    time.sleep(STEP_SECONDS / 20)
            finally:
                crowd.kill()
            told.seek(0)
            answers = [json.loads(line) for line in told]
        endpoint.stop()
        cost = [line for line in endpoint.log if line["event"] == "ended"]
    wrong = [(one["client"], one["status"], one["error"]) for one in answers if one["error"]]
    assert not wrong, wrong[:5]
    assert len(answers) == most == STREAMS, "all were open at once"
    truth = Truth(Model(steps=STEPS, tokens=TOKENS))
    assert not any(truth.wrong(one["question"], one["text"]) for one in answers)
    first = max(one["times"][0] for one in answers) / STEP_SECONDS
    assert threads <= 16
    record_property("first_piece", first)
    calls = [(line["cpu_ms_per_call"], line["calls"]) for line in cost]
    summary = (
        f"{STREAMS} streams at once: first piece after {first:.3f} "
        "step times at most, "
        f"{threads} threads in one, {memory / 2**20:.0f} MiB in all; ms of CPU a call, and "
        f"calls: {calls}; "
        f"seconds of CPU: { {who: round(seconds, 1) for who, seconds in used.items()} }; load "
        f"{os.getloadavg()[0]:.0f}"
    )
    with capsys.disabled():
        sys.stdout.write(f"\n{summary}\n")
    assert not FULL or first <= LATEST


def _seconds(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)
