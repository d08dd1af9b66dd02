"""Tests that do not end: the run ends all the same, with a trace of all threads."""

import os
import subprocess
import sys

import pytest

from tests import ROOT

STALLS = {
    # the alarm of pytest-timeout ends the test, and its fixture goes on
    "fixture": "@pytest.fixture\ndef never():\n    yield\n    wait()\ndef test_it(never):\n    wait()",
    # a handler of a signal is not called before the call in C has ended
    "deaf": "def test_it():\n    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n    wait()",
    "end": "def test_it():\n    threading.Thread(target=wait, name='never').start()",
}


@pytest.mark.parametrize("where", STALLS)
def test_a_run_that_stalls_ends_with_a_trace_of_all_threads(where, tmp_path):
    source = "import signal, threading, pytest\nwait = threading.Event().wait\n" + STALLS[where]
    (tmp_path / "test_it.py").write_text(source)
    hooks = "from tests.crashes import *\ndef pytest_configure(): leave_a_trace()"
    (tmp_path / "conftest.py").write_text(hooks)
    plugins = ("--disable-plugin-autoload", "-p", "pytest_timeout")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "--timeout=0.2", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LR_SGLANG_TESTS_GRACE": "0.5"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "Timeout (0:00:00" in done.stderr and "in wait\n" in done.stderr
    assert "most recent call first" in done.stderr
