"""Where Python itself crashes there is a trace: of the tests, and of the processes that
they start.
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("thread", ["main", "another"])
def test_a_crash_leaves_a_trace(tmp_path, thread):
    """Also where a thread's stack overflows: without one more stack Python would end there without
    a word.
    """
    program = """
        import sys, threading
        from tests.crashes import leave_a_trace

        class Deep:
            def __repr__(self):
                return repr([self])

        leave_a_trace()
        sys.setrecursionlimit(10**8)
        {"main": lambda f: f(), "another": lambda f: threading.Thread(target=f).start()}[sys.argv[1]](Deep().__repr__)
    """
    trace = tmp_path / "crash.txt"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), thread],
        cwd=ROOT,
        env={**os.environ, "LR_SGLANG_CRASH_FILE": str(trace)},
        check=False,
    )
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in trace.read_text() and "in __repr__" in trace.read_text()


CHILD = """
import faulthandler, multiprocessing, sys

def crash():
    faulthandler.enable()  # as SGLang's do, to a log of their own
    faulthandler._sigsegv()

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=crash)
    child.start()
    child.join()
"""
OVERWRITTEN = """
import faulthandler
import tvm_ffi, colorsys
faulthandler._sigsegv()
"""


@pytest.mark.parametrize(
    "program", [f"{CHILD}# fork", f"{CHILD}# spawn", OVERWRITTEN], ids=["fork", "spawn", "tvm_ffi"]
)
def test_a_crash_of_a_process_that_a_test_starts_leaves_a_trace_too(tmp_path, program):
    (tmp_path / "tvm_ffi.py").write_text("import ctypes; ctypes.CDLL(None).signal(11, 0)")
    (tmp_path / "server.py").write_text(program)
    script, trace = (ROOT / ".ci" / "run").read_text(), tmp_path / "crash.txt"
    folder = re.search(r"^export PYTHONPATH=\$PWD/(\S+?)\$", script, re.MULTILINE)[1]
    path = f"{ROOT / folder}{os.pathsep}{tmp_path}"
    env = {**os.environ, "PYTHONPATH": path, "LR_SGLANG_CRASH_FILE": str(trace)}
    command = [sys.executable, "server.py", program.rpartition("# ")[2]]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert "Segmentation fault" in trace.read_text() and "server.py" in trace.read_text(), (
        done.stderr
    )
