"""Tests that do not end, under the project's own settings of pytest: the run ends all the same, with
a trace of all threads.
"""

import os
import subprocess
import sys

import pytest

from tests import ROOT

BEGIN = "import signal, threading, time, pytest\nwait = threading.Event().wait\n"
STALLS = {
    # a fixture has no alarm
    "start": "@pytest.fixture\ndef never():\n    wait()\ndef test_it(never):\n    pass",
    # the alarm of pytest-timeout ends the test, and its fixture goes on
    "fixture": "@pytest.fixture\ndef never():\n    yield\n    wait()\ndef test_it(never):\n    wait()",
    # a handler of a signal is not called before the call in C has ended
    "deaf": "def test_it():\n    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n    wait()",
    "end": "def test_it():\n    threading.Thread(target=wait, name='never').start()",
}


def ran(folder, source, seconds, grace):
    """A run of a test that has so many seconds, and its fixtures so many more."""
    (folder / "test_it.py").write_text(BEGIN + source)
    hooks = "from tests.crashes import *\ndef pytest_configure(): leave_a_trace()"
    (folder / "conftest.py").write_text(hooks)
    settings = ("-c", ROOT / "pyproject.toml", "--rootdir", folder)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *settings, f"--timeout={seconds}", "test_it.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LR_SGLANG_TESTS_GRACE": str(grace)},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.parametrize("where", STALLS)
def test_a_run_that_stalls_ends_with_a_trace_of_all_threads(where, tmp_path):
    done = ran(tmp_path, STALLS[where], 0.2, 0.5)
    assert done.returncode == 1
    assert "Timeout (0:00:00" in done.stderr and "in wait\n" in done.stderr
    assert "most recent call first" in done.stderr


def test_what_a_fixture_takes_to_start_is_not_the_tests_time(tmp_path):
    fixture = "@pytest.fixture\ndef slow():\n    time.sleep(4)\n"
    done = ran(tmp_path, fixture + "def test_it(slow):\n    pass", 3, 50)
    assert done.returncode == 0, done.stdout
