"""Ctrl-C on a command that started its own servers: nothing runs on, and the output can be gone on
with.

A server takes long to start: an ordinary run interrupts the benchmark of test_bench.py, which has
one of its own.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import full

ROOT = Path(__file__).parents[2]


def descendants(pid):
    """Process ids of all children, theirs too."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in pairs if parent in new} - found
        found |= new
    return found


def running(pids):
    return {pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and " Z " not in _stat(pid)}


def _stat(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return " Z "


def interrupted(process):
    """Sends Ctrl-C, and says what the command wrote on its standard error; all that it started must
    be gone.
    """
    family = descendants(process.pid)
    assert len(family) >= 3  # the guardian, the server and its scheduler at least
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "--resume --output" in err
    assert not running(family)
    return err


@pytest.mark.skipif(not full, reason="a start of a server more: only in test-full")
@pytest.mark.timeout(400)
def test_ctrl_c_leaves_no_process(tmp_path):
    """One server is enough: the baseline's target."""
    command = [sys.executable, "cli.py", "run", "--task", "pocket", "--mode", "autoregressive"]
    output = ["--target", "pocket:target", "--output", str(tmp_path)]
    process = subprocess.Popen(
        [*command, *output],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    path, deadline = tmp_path / "records.jsonl", time.monotonic() + 300
    while not path.exists() or path.read_bytes().count(b"\n") < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    interrupted(process)
    ids = [json.loads(line)["question_id"] for line in path.read_text("utf-8").splitlines()]
    assert len(ids) == len(set(ids)) >= 2
