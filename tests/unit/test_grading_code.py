"""Grading of code: HumanEval's own solutions and planted wrong ones, LiveCodeBench's tests, and hostile programs."""

import base64
import json
import os
import pickle
import re
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lr_sglang import tasks
from lr_sglang.errors import ConfigError, SetupError
from lr_sglang.grading import programs
from lr_sglang.grading.sandbox import Limits, Sandbox
from lr_sglang.tasks import Question

full = bool(os.environ.get("LR_SGLANG_FULL"))
PROBLEMS = tasks.load("humaneval")[:: 1 if full else 10]
QUICK = Limits(seconds=1.0)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as made:
        yield made


def fenced(code):
    return f"<think>Hm.</think>Here it is:\n\n```python\n{code}\n```\nDone."


def grades(sandbox, answer, problems=PROBLEMS):
    """The verdicts on an answer to each problem."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda q: programs.humaneval(fenced(answer(q)), q, sandbox), problems))


def solution(question):
    return question.extra["prompt"] + question.extra["canonical_solution"]


# What is nearly right: every answer of the right function, changed a little.
NEARLY = """

def _nearly(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return value + [0]
    if isinstance(value, tuple):
        return (*value, 0)
    if isinstance(value, dict):
        return {**value, "x": 0}
    return 12345


def _wrap(right):
    return lambda *arguments: _nearly(right(*arguments))


"""
WRONG = {
    "nearly right": lambda q: f"{solution(q)}{NEARLY}{q.extra['entry_point']} = _wrap({q.extra['entry_point']})",
    "nothing": lambda q: f"def {q.extra['entry_point']}(*a):\n    return None",
    "leaves early": lambda q: f"import os\ndef {q.extra['entry_point']}(*a):\n    os._exit(0)",
    "exits": lambda q: f"def {q.extra['entry_point']}(*a):\n    raise SystemExit(0)",
    "another function": lambda q: "def other(x):\n    return x",
}


def test_there_are_164_problems():
    assert len(tasks.load("humaneval")) == 164


def test_canonical_solutions_pass(sandbox):
    assert not [(q.id, g.reason) for q, g in zip(PROBLEMS, grades(sandbox, solution), strict=True) if not g.correct]


@pytest.mark.parametrize("kind", WRONG)
def test_planted_wrong_ones_fail(sandbox, kind):
    problems = PROBLEMS if full or kind == "nearly right" else PROBLEMS[::4]
    given = grades(sandbox, WRONG[kind], problems)
    assert not [q.id for q, grade in zip(problems, given, strict=True) if grade.correct is not False]


def test_a_body_alone_is_an_answer_too(sandbox):
    first = PROBLEMS[0]
    body = first.extra["canonical_solution"]
    for answer in (fenced(body), body, fenced("\n".join(line.removeprefix("    ") for line in body.split("\n")))):
        assert programs.humaneval(answer, first, sandbox).correct is True


def test_helpers_of_the_prompt_may_be_left_out(sandbox):
    (poly,) = (q for q in tasks.load("humaneval") if q.id == "HumanEval/32")
    only = "import math\n" + poly.extra["prompt"].partition("def find_zero")[1] + "(xs: list):\n"
    answer = only + poly.extra["canonical_solution"]
    assert "def poly" not in answer
    assert programs.humaneval(fenced(answer), poly, sandbox).correct is True


def test_an_answer_without_a_program_is_wrong(sandbox):
    assert programs.humaneval("I do not know.", PROBLEMS[0], sandbox).reason == "there is no program in the answer"


HOSTILE = {
    "socket": ("import socket; socket.create_connection(('127.0.0.1', 22))", "socket"),
    "name look-up": ("import socket; socket.gethostbyname('localhost')", "socket"),
    "fork": ("import os\nwhile True: os.fork()", "os.fork is not allowed"),
    "process": ("import subprocess; subprocess.run(['true'])", "subprocess.Popen is not allowed"),
    "shell": ("import os; os.system('true')", "os.system is not allowed"),
    "signal": ("import os; os.kill(os.getppid(), 9)", "not allowed"),
    "foreign code": ("import ctypes", "ctypes"),
    "foreign code again": (
        "import sys\ndel sys.modules['_ctypes'], sys.modules['ctypes']\nimport ctypes",
        "not allowed",
    ),
    "foreign code under another name": (
        "import glob, importlib.machinery as m, importlib.util as u, shutil, sysconfig\n"
        "shutil.copy(glob.glob(sysconfig.get_path('stdlib') + '/lib-dynload/_ctypes.*')[0], 'x.so')\n"
        "u.module_from_spec(u.spec_from_loader('a._ctypes', m.ExtensionFileLoader('a._ctypes', 'x.so')))",
        "not allowed",
    ),
    "process without an event": (
        "import multiprocessing.util as u; u.spawnv_passfds(b'/x', [b'x'], ())",
        "not allowed",
    ),
    "signal without an event": (
        "import os, signal; signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)",
        "not allowed",
    ),
    "another interpreter": ("import _xxsubinterpreters as s; s.create()", "creation failed"),
    "memory": ("x = bytearray(4 << 30)", "MemoryError"),
    "a long file": ("f = open('a', 'w')\nwhile True: f.write('x' * 100000)", "too large"),
    "much output": ("while True: print('x' * 100000)", "too large"),
    "endless": ("while True: pass", "processor time|did not end"),
    "power": ("9**9**9**9", "processor time|did not end"),
    "early end": ("import os; os._exit(0)", "ended before its tests did"),
    "quiet end": ("import sys; sys.exit(0)", "ended before its tests did"),
    "no end of files": ("import os; os.closerange(0, 100)", "ended"),
    "forged report": ("import os; os.write(3, b'{}' * 10)", "ended before its tests did"),
    "no syntax": ("def (", "SyntaxError"),
    "null": ("x = 1\0", "SyntaxError"),
    "half a pair": ("x = '\ud800'", "surrogates"),
    "nesting": ("(" * 100000, "SyntaxError"),
    "a secret": ("import os; raise Exception(sorted(os.environ))", "Exception"),
}


def hostile(name, sandbox, limits):
    program, reason = HOSTILE[name]
    began = time.monotonic()
    done = sandbox.run({"program": program, "kind": "asserts", "test": "pass", "tests": [{}]}, limits)
    assert time.monotonic() - began < 60
    assert not done.passed and re.search(reason, done.reason), done
    return done


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_fails_and_harms_nothing(name, sandbox, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    done = hostile(name, sandbox, QUICK)
    assert "HF_TOKEN" not in done.reason


@pytest.mark.parametrize("name", ["socket", "fork", "early end", "endless", "signal without an event"])
def test_where_the_kernel_gives_no_namespaces_the_interpreter_refuses(name, sandbox):
    done = hostile(name, sandbox, Limits(seconds=1.0, namespaces=False))
    assert done.walls == ("sockets and processes refused by the interpreter",)


def test_files_outside_cannot_be_changed(sandbox, tmp_path):
    """Only where the kernel permits it; the verdict says so."""
    mine = tmp_path / "mine"
    mine.write_text("x")
    job = {"kind": "asserts", "test": "pass", "tests": [{}]}
    for program in (
        f"open({str(mine)!r}, 'w')",
        f"import os; os.remove({str(mine)!r})",
        f"open({str(tmp_path)!r} + '/n', 'w')",
    ):
        done = sandbox.run({**job, "program": program}, QUICK)
        if "read-only files" not in done.walls:
            assert done.walls
            return
        assert not done.passed and "Read-only" in done.reason
    assert mine.read_text() == "x"


def test_what_answers_need_is_there(sandbox):
    """Threads, temporary files, numpy, deep recursion, other ways to read."""
    program = """
import sys, tempfile, threading
import numpy
sys.setrecursionlimit(20000)
def deep(n): return n and 1 + deep(n - 1)
threads = [threading.Thread(target=print) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
with tempfile.TemporaryFile() as file: file.write(b"x")
assert deep(10000) == 10000 and numpy.ones(3).sum() == 3
"""
    done = sandbox.run({"program": program, "kind": "asserts", "test": "pass", "tests": [{}]}, Limits(seconds=20.0))
    assert done.passed, done


def test_nothing_is_left_behind(sandbox, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sandbox.run({"program": "open('a', 'w').write('x')", "kind": "asserts", "test": "pass", "tests": [{}]})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("namespaces", [True, False])
@pytest.mark.parametrize(
    "left",
    ["for _ in range(1500): os.mkdir('d'); os.chdir('d')", "os.makedirs('a/b'); os.chmod('a', 0)", "os.chmod('.', 0)"],
)
def test_nothing_is_left_behind_on_purpose(sandbox, tmp_path, monkeypatch, namespaces, left):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    job = {"program": f"import os\n{left}", "kind": "asserts", "test": "pass", "tests": [{}]}
    assert sandbox.run(job, Limits(namespaces=namespaces)).passed
    assert not list(tmp_path.iterdir())


def test_other_processes_are_not_seen(sandbox):
    """Only where the kernel permits it; the verdict says so."""
    program = "import os; assert all(int(name) < 10 for name in os.listdir('/proc') if name.isdigit())"
    done = sandbox.run({"program": program, "kind": "asserts", "test": "pass", "tests": [{}]}, QUICK)
    assert done.passed or "read-only files" not in done.walls


def test_closing_ends_what_is_running():
    with ThreadPoolExecutor(1) as pool:
        with Sandbox() as sandbox:
            job = {"program": "import time; time.sleep(300)", "kind": "asserts", "test": "pass", "tests": [{}]}
            running = pool.submit(sandbox.run, job, Limits(seconds=100.0))
            while not sandbox._running:
                time.sleep(0.01)
            (process,) = sandbox._running
        with pytest.raises(SetupError, match="stopped"):
            running.result(timeout=60)
    assert process.poll() is not None
    with pytest.raises(SetupError, match="stopped"):
        sandbox.run(job)


# -- LiveCodeBench

ADD = "a, b = map(int, input().split())\nprint(a + b)"
METHOD = "class Solution:\n    def add(self, a: List[int], b: int) -> int:\n        return sum(a) + b"
OUT = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}, {"input": "4 5", "output": "9", "testtype": "stdin"}]
CALLS = [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}, {"input": "[]\n-1", "output": "-1"}]


def packed(tests):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def problem(tests, function=""):
    hidden = {
        "public_test_cases": json.dumps(tests[:1]),
        "private_test_cases": packed(tests[1:]),
        "metadata": json.dumps({"func_name": function} if function else {}),
        "starter_code": "",
    }
    return Question("q", "?", None, {}, hidden)


@pytest.mark.parametrize(
    ("program", "tests", "function", "correct"),
    [
        (ADD, OUT, "", True),
        ("import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))\nsys.exit()", OUT, "", True),
        ("if __name__ == '__main__':\n    print(sum(map(int, open(0).read().split())), end=' \\n\\n')", OUT, "", True),
        ("print(sum(map(float, input().split())))", OUT, "", True),
        ("print(3)", OUT, "", False),
        (ADD + "\nprint()\nprint(0)", OUT, "", False),
        (ADD + "\nraise ValueError", OUT, "", False),
        (ADD + "\nimport sys; sys.exit(1)", OUT, "", False),
        ("pass", OUT, "", False),
        (METHOD, CALLS, "add", True),
        ("def add(a, b):\n    return sum(a) + b", CALLS, "add", True),
        (METHOD.replace("sum(a) + b", "__import__('numpy').int64(sum(a) + b)"), CALLS, "add", True),
        (METHOD.replace("+ b", "- b"), CALLS, "add", False),
        (METHOD.replace("sum(a) + b", "{1: object()}"), CALLS, "add", False),
        (METHOD.replace("def add", "def sum_of"), CALLS, "add", False),
        ("print(6)", CALLS, "add", False),
    ],
)
def test_livecodebench(sandbox, program, tests, function, correct):
    grade = programs.livecodebench(fenced(program), problem(tests, function), sandbox)
    assert grade.correct is correct and bool(grade.reason) is not correct, grade


@pytest.mark.parametrize("put", ["os.mkdir({!r})", "os.mkfifo({!r})", "os.symlink('/dev/zero', {!r})"])
@pytest.mark.parametrize("namespaces", [True, False])
def test_nothing_can_be_put_in_the_place_of_its_input_and_output(sandbox, put, namespaces):
    names = "".join(f"\nclear({name!r}); {put.format(name)}" for name in ("stdin", "stdout", "stderr"))
    clear = "def clear(name):\n    if os.path.lexists(name): (os.rmdir if os.path.isdir(name) else os.unlink)(name)"
    job = {"program": f"import os\n{clear}{names}\n{ADD}", "kind": "stdio", "tests": OUT}
    done = sandbox.run(job, Limits(seconds=1.0, total=5.0, namespaces=namespaces))
    assert done.passed, done


def test_what_a_test_expects_cannot_be_looked_up(sandbox):
    program = """
import sys
frame, found = sys._getframe(), []
while frame:
    found += [str(value) for value in frame.f_locals.values() if value is not found]
    frame = frame.f_back
print(found)
raise Exception("seen" if "-%d-" % 4711 in str(found) else "not seen")
"""
    done = sandbox.run({"program": program, "kind": "stdio", "tests": [{"input": "", "output": "-4711-"}]}, QUICK)
    assert done.reason == "Exception: not seen", done


def test_a_report_too_deep_to_be_read_is_wrong(sandbox):
    deep = "def add(a, b):\n    import os\n    os.write(3, b'[' * 60000)\n    os._exit(0)"
    assert programs.livecodebench(fenced(deep), problem(CALLS, "add"), sandbox).correct is False


def test_a_tuple_is_a_list_there(sandbox):
    tests = [{"input": "1", "output": "[1, 2]", "testtype": "functional"}] * 2
    grade = programs.livecodebench(
        fenced("class Solution:\n  def f(self, n): return n, n + 1"), problem(tests, "f"), sandbox
    )
    assert grade.correct is True


class Evil:
    def __reduce__(self):
        return os.system, ("touch lr-was-here",)


def test_tests_that_are_no_calls_are_a_named_error(sandbox):
    broken = [{"input": "[1", "output": "6", "testtype": "functional"}] * 2
    for question in (problem(broken, "add"), problem(CALLS)):
        with pytest.raises(ConfigError, match="tests that cannot be read"):
            programs.livecodebench(fenced(METHOD), question, sandbox)


def test_packed_tests_that_would_run_something_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    for wrong in (evil, "x", base64.b64encode(b"x").decode(), "[1]", base64.b64encode(zlib.compress(b"")).decode()):
        with pytest.raises(ConfigError, match="tests that cannot be read"):
            programs.lcb_tests(wrong)
    assert not list(Path().iterdir())


def test_tests_that_unpack_to_a_flood_are_refused(monkeypatch):
    monkeypatch.setattr(programs, "MOST_TESTS_BYTES", 1000)
    with pytest.raises(ConfigError, match="too long"):
        programs.lcb_tests(packed([{"input": "x" * 5000, "output": ""}]))


def test_without_its_tests_a_problem_is_not_graded(sandbox):
    assert programs.livecodebench(fenced(ADD), Question("q", "?"), sandbox).correct is None
