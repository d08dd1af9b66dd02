"""Grading of code: HumanEval's own solutions and planted wrong ones, LiveCodeBench's tests."""

import base64
import dataclasses
import json
import os
import pickle
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from lr_sglang import tasks
from lr_sglang.errors import ConfigError, SetupError
from lr_sglang.grading import isolation, programs
from lr_sglang.grading.cell.values import pack, unpack
from lr_sglang.grading.grader import Grader, Rules
from lr_sglang.grading.sandbox import Limits, Sandbox, standing
from lr_sglang.tasks import Question, gym

full = bool(os.environ.get("LR_SGLANG_FULL"))
PROBLEMS = tasks.load("humaneval")[:: 1 if full else 10]
SCRIPT = {"kind": "stdio", "program": "", "tests": [{"output": ""}]}
VALUES = [
    None,
    True,
    -3,
    1.5,
    float("inf"),
    "x",
    b"x",
    2j,
    [1, (2,), {3}],
    {(1, 2): [{}]},
    frozenset("ab"),
    [],
    (),
]
VALUES += [Fraction(1, 3), Decimal("0.1"), {"list": [1]}]


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(unsafe=True) as made:  # where no wall stands, too
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
    "nearly right": lambda q: (
        f"{solution(q)}{NEARLY}{q.extra['entry_point']} = _wrap({q.extra['entry_point']})"
    ),
    "nothing": lambda q: f"def {q.extra['entry_point']}(*a):\n    return None",
    "leaves early": lambda q: f"import os\ndef {q.extra['entry_point']}(*a):\n    os._exit(0)",
    "exits": lambda q: f"def {q.extra['entry_point']}(*a):\n    raise SystemExit(0)",
    "another function": lambda q: "def other(x):\n    return x",
}


def test_there_are_164_problems():
    assert len(tasks.load("humaneval")) == 164


def test_canonical_solutions_pass(sandbox):
    assert not [
        (q.id, g.reason)
        for q, g in zip(PROBLEMS, grades(sandbox, solution), strict=True)
        if not g.correct
    ]


@pytest.mark.parametrize("kind", WRONG)
def test_planted_wrong_ones_fail(sandbox, kind):
    problems = PROBLEMS if full or kind == "nearly right" else PROBLEMS[::4]
    given = grades(sandbox, WRONG[kind], problems)
    assert not [
        q.id for q, grade in zip(problems, given, strict=True) if grade.correct is not False
    ]


def test_a_body_alone_is_an_answer_too(sandbox):
    first = PROBLEMS[0]
    body = first.extra["canonical_solution"]
    for answer in (
        fenced(body),
        body,
        fenced("\n".join(line.removeprefix("    ") for line in body.split("\n"))),
    ):
        assert programs.humaneval(answer, first, sandbox).correct is True


def test_helpers_of_the_prompt_may_be_left_out(sandbox):
    (poly,) = (q for q in tasks.load("humaneval") if q.id == "HumanEval/32")
    only = "import math\n" + poly.extra["prompt"].partition("def find_zero")[1] + "(xs: list):\n"
    answer = only + poly.extra["canonical_solution"]
    assert "def poly" not in answer
    assert programs.humaneval(fenced(answer), poly, sandbox).correct is True


def test_an_answer_without_a_program_is_wrong(sandbox):
    assert (
        programs.humaneval("I do not know.", PROBLEMS[0], sandbox).reason
        == "there is no program in the answer"
    )


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
    done = sandbox.run({**SCRIPT, "program": program}, Limits(seconds=20.0))
    assert done.passed, done


@pytest.mark.parametrize(
    "program",
    [
        "import atexit; atexit.register(lambda: print('done'))",
        "import threading; threading.Thread(target=lambda: (__import__('time').sleep(.1), "
        "print('done'))).start()",
        "import asyncio\nasync def f(): print('done')\nasyncio.run(f())",
        "print(open('/dev/stdin').read() or 'done')",
        "import sys; sys.stdin.seek(0); print('done', end=''); sys.exit(0)",
    ],
)
def test_a_program_ends_as_python_ends(sandbox, program):
    done = sandbox.run(
        {"kind": "stdio", "program": program, "tests": [{"output": "done"}] * 2},
        Limits(seconds=20.0),
    )
    assert done.passed, done


@pytest.mark.parametrize("value", VALUES)
def test_what_a_function_returns_arrives_as_it_is(value):
    assert unpack(json.loads(json.dumps(pack(value)))) == value


def test_an_iterator_arrives_as_one():
    assert list(unpack(json.loads(json.dumps(pack(iter([1, (2,)])))))) == [1, (2,)]


@pytest.mark.parametrize(
    "wrong", [[], [1], {}, {"x": 1}, {"list": 1}, {"dict": [1]}, {"complex": "xy"}, {"set": [{}]}]
)
def test_what_was_not_packed_is_a_named_error(wrong):
    with pytest.raises(ValueError, match=r"not a packed value"):
        unpack(wrong)


def test_tests_that_expect_an_exception_see_it(sandbox):
    test = (
        "try:\n    f(0)\nexcept ZeroDivisionError as error:\n    assert 'zero' in "
        "str(error)\nelse:\n    assert 0"
    )
    job = {"kind": "asserts", "function": "f", "before": "", "test": test}
    assert sandbox.run({**job, "program": "def f(x): return 1 / x"}).passed
    assert not sandbox.run({**job, "program": "def f(x): return 1"}).passed


def test_where_nothing_keeps_it_apart_code_is_not_run(monkeypatch):
    monkeypatch.setattr("lr_sglang.grading.sandbox.standing", lambda: ())
    with pytest.raises(SetupError, match="cannot be kept apart") as raised:
        Grader("humaneval", Rules(execute=True))
    assert "--unsafe-code-execution" in raised.value.hint
    with Sandbox() as sandbox, pytest.raises(SetupError, match="cannot be kept apart"):
        sandbox.run(SCRIPT)
    with Sandbox(unsafe=True) as sandbox:
        done = sandbox.run(SCRIPT)
        assert done.passed and done.walls == ("none",)
        secret = sandbox.run({**SCRIPT, "program": f"raise SystemExit(open({__file__!r}).read())"})
        assert secret.reason == "test 1: ended with an error"


def test_closing_ends_what_is_running():
    with ThreadPoolExecutor(1) as pool:
        with Sandbox(unsafe=True) as sandbox:
            job = {**SCRIPT, "program": "import time; time.sleep(300)"}
            running = pool.submit(sandbox.run, job, Limits(seconds=100.0))
            while not sandbox._running:
                time.sleep(0.01)
            (cell,) = sandbox._running
        with pytest.raises(SetupError, match="stopped"):
            running.result(timeout=60)
    assert cell.process.poll() is not None
    with pytest.raises(SetupError, match="stopped"):
        sandbox.run(job)


# -- LiveCodeBench

ADD = "a, b = map(int, input().split())\nprint(a + b)"
METHOD = (
    "class Solution:\n    def add(self, a: List[int], b: int) -> int:\n        return sum(a) + b"
)
OUT = [
    {"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
    {"input": "4 5", "output": "9", "testtype": "stdin"},
]
CALLS = [
    {"input": "[1, 2]\n3", "output": "6", "testtype": "functional"},
    {"input": "[]\n-1", "output": "-1"},
]


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
        (
            "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))\nsys.exit()",
            OUT,
            "",
            True,
        ),
        (
            "if __name__ == '__main__':\n    print(sum(map(int, open(0).read().split())), "
            "end=' \\n\\n')",
            OUT,
            "",
            True,
        ),
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
    for wrong in (
        evil,
        "x",
        base64.b64encode(b"x").decode(),
        "[1]",
        base64.b64encode(zlib.compress(b"")).decode(),
    ):
        with pytest.raises(ConfigError, match="tests that cannot be read"):
            programs.lcb_tests(wrong)
    assert not list(Path().iterdir())


def test_tests_that_unpack_to_a_flood_are_refused(monkeypatch):
    monkeypatch.setattr(programs, "MAX_TESTS_BYTES", 1000)
    with pytest.raises(ConfigError, match="too long"):
        programs.lcb_tests(packed([{"input": "x" * 5000, "output": ""}]))


def test_without_its_tests_a_problem_is_not_graded(sandbox):
    assert programs.livecodebench(fenced(ADD), Question("q", "?"), sandbox).correct is None


# -- reasoning-gym

GYM = """
class Made:
    def score_answer(self, answer, entry):
        return float(eval(answer) == int(entry["answer"]) + entry["metadata"]["more"])  # as that of n_queens
def create_dataset(name, size, seed):
    return {"sum": Made()}[name]
"""


@pytest.mark.skipif(not standing(), reason="no wall stands on this machine")
def test_a_generator_that_evaluates_answers_does_so_behind_the_walls(monkeypatch, tmp_path):
    (tmp_path / "reasoning_gym.py").write_text(GYM)
    monkeypatch.setattr(gym, "missing", lambda: False)
    tmp_path.chmod(0o755)
    files, place = isolation.layout(), str(tmp_path)
    links = {path: target for path, target in files.links.items() if path != "/tmp"}
    with_gym = dataclasses.replace(
        files, binds=[*files.binds, place], links=links, packages=[*files.packages, place]
    )
    monkeypatch.setattr(isolation, "layout", lambda: with_gym)
    question = Question(
        "s", "2+3?", "5", {"generator": "sum", "asked": "2+3?", "metadata": {"more": 0}}
    )
    stolen = tmp_path / "stolen"
    with Grader("reasoning-gym", Rules(execute=True)) as grader:
        given = {
            text: grader.grade(f"\\boxed{{{text}}}", question)
            for text in ("5", "6", f"open('{stolen}', 'w')")
        }
        assert [grade.correct for grade in given.values()] == [True, False, False]
        assert given["5"].by == "reasoning-gym" and given["5"].extra
    with Grader("reasoning-gym") as grader:
        refused = grader.grade("\\boxed{5}", question)
        assert (
            refused.correct is None
            and "--allow-code-execution" in refused.reason
            and not refused.failed
        )
    assert not stolen.exists()
