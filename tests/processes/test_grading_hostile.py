"""Hostile answers, behind every wall that this machine has: they get nowhere, harm nothing, and are
graded wrong.
"""

import dataclasses
import os
import secrets
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lr_sglang.errors import SetupError
from lr_sglang.grading import isolation
from lr_sglang.grading.sandbox import Limits, Sandbox, standing
from tests.processes import hostile_answers as hostile

full = bool(os.environ.get("LR_SGLANG_FULL"))
QUICK = Limits(seconds=0.5, memory=512, total=60.0)
ESCAPES = hostile.FILES | hostile.PROCESSES | hostile.NETWORK | hostile.KERNEL
WALLS = list(standing()) or [
    pytest.param("", marks=pytest.mark.skip(reason="no wall stands on this machine"))
]


def some(answers):
    """All of them, or a third."""
    return list(answers) if full else list(answers)[::3]


@pytest.fixture(params=WALLS, scope="module")
def sandbox(request):
    with Sandbox(request.param) as made:
        yield made


@pytest.fixture
def outside(tmp_path):
    """What a hostile answer is after; none of it is reached, or changed."""
    os.chmod(tmp_path, 0o755)
    name, folder = f"lr-{secrets.token_hex(8)}", tmp_path / "outside"
    folder.mkdir()
    (folder / "keys").write_text("sk-secret-key")
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
            path.bind(str(folder / "socket"))
            path.listen()
            abstract.bind(f"\0{name}")
            victim = subprocess.Popen(
                [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE
            )
            known = {
                "OUTSIDE": str(folder),
                "TCP": tcp.getsockname()[1],
                "ABSTRACT": name,
                "VICTIM": victim.pid,
            }
            try:
                yield "".join(f"{key} = {value!r}\n" for key, value in known.items())
                assert victim.poll() is None
            finally:
                victim.communicate(b"\n")
            for listening in (tcp, path, abstract):
                listening.setblocking(False)
                with pytest.raises(BlockingIOError):
                    listening.recv(1) if listening is abstract else listening.accept()
    assert (folder / "keys").read_text() == "sk-secret-key" and len(list(folder.iterdir())) == 2


def wrong(done):
    assert not done.passed and done.reason and "sk-secret" not in done.reason, done


@pytest.mark.parametrize("name", some(ESCAPES))
def test_an_answer_does_not_get_out(name, sandbox, outside):
    program = outside + ESCAPES[name]
    wrong(
        sandbox.run({"kind": "stdio", "program": program, "tests": [{"output": "escaped"}]}, QUICK)
    )


@pytest.mark.parametrize("name", some(hostile.EXPECTED))
def test_what_is_expected_is_not_found(name, sandbox):
    expected = f"expected-{secrets.token_hex(4)}"
    job = {
        "kind": "stdio",
        "program": hostile.EXPECTED[name],
        "tests": [{"input": "x\n", "output": expected}] * 2,
    }
    wrong(sandbox.run(job, Limits(seconds=5.0)))


@pytest.mark.parametrize("name", some(hostile.RESOURCES | (hostile.SLOW if full else {})))
def test_an_answer_cannot_make_itself_ungraded(name, sandbox):
    program = (hostile.RESOURCES | hostile.SLOW)[name]
    first = f"if input() == '1':\n    print(1, flush=True)\n{program}"
    for text in (program, first) if full else (first,):
        big = "9 " * 100000
        tests = [{"input": "1\n", "output": "1"}, {"input": f"2\n{big}", "output": "2"}]
        began = time.monotonic()
        wrong(sandbox.run({"kind": "stdio", "program": text, "tests": tests}, QUICK))
        assert time.monotonic() - began < 120


@pytest.mark.parametrize("name", some(hostile.FUNCTIONS))
def test_tests_that_are_code_are_not_fooled(name, sandbox):
    test = "def check(f):\n    assert f(2) == 4\n    assert f(3) == 9\ncheck(sq)"
    job = {
        "kind": "asserts",
        "function": "sq",
        "before": "def sq(x):\n    '''square'''\n",
        "test": test,
    }
    wrong(sandbox.run({**job, "program": hostile.FUNCTIONS[name]}, QUICK))


@pytest.mark.parametrize("name", some(hostile.CALLS))
def test_values_that_are_compared_do_not_fool(name, sandbox):
    tests = [{"arguments": [2], "expected": 4}, {"arguments": [3], "expected": 9}]
    job = {"kind": "calls", "function": "f", "program": hostile.CALLS[name], "tests": tests}
    wrong(sandbox.run(job, QUICK))


def test_there_are_enough_of_them():
    groups = (
        ESCAPES,
        hostile.EXPECTED,
        hostile.RESOURCES,
        hostile.SLOW,
        hostile.FUNCTIONS,
        hostile.CALLS,
    )
    assert sum(map(len, groups)) >= 60


def test_a_right_answer_is_right_behind_each_wall(sandbox):
    job = {"kind": "asserts", "function": "sq", "before": "", "test": "assert sq(3) == 9"}
    assert sandbox.run({**job, "program": "def sq(x): return x * x"}).passed
    assert sandbox.run(
        {"kind": "stdio", "program": "import numpy; print(3)", "tests": [{"output": "3"}]}
    ).passed


def test_where_this_package_is_installed_its_questions_are_covered(sandbox, tmp_path, monkeypatch):
    os.chmod(tmp_path, 0o755)
    package = tmp_path / "lr_sglang"
    package.mkdir()
    (package / "solutions").write_text("x")
    there = isolation.layout()
    links = {path: target for path, target in there.links.items() if path != "/tmp"}
    changed = dataclasses.replace(
        there, binds=[*there.binds, str(tmp_path)], links=links, covers=[str(package)]
    )
    monkeypatch.setattr(isolation, "layout", lambda: changed)
    program = f"import os; print(os.listdir({str(tmp_path)!r}), os.listdir({str(package)!r}))"
    done = sandbox.run(
        {"kind": "stdio", "program": program, "tests": [{"output": "['lr_sglang'] []"}]}
    )
    assert done.passed, done


def test_each_test_has_a_fresh_folder(sandbox):
    program = (
        "import os\nprint(len(os.listdir('.')))\nopen(input(), "
        "'w').write('x')\nos.chmod('.', int(input(), 8))"
    )
    tests = [
        {"input": f"{n}\n{mode}\n", "output": "0"}
        for n, mode in enumerate(("755", "0", "1755", "777"))
    ]
    done = sandbox.run({"kind": "stdio", "program": program, "tests": tests})
    assert done.passed, done


def test_nothing_is_left_behind(sandbox, tmp_path, monkeypatch):
    """Neither files nor processes nor descriptors."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    closed = "import os; os.makedirs('a/b'); os.chmod('a', 0); os.chmod('.', 0)"
    unwalled = Sandbox(isolation.NONE, unsafe=True)
    for made, left in (
        (sandbox, hostile.RESOURCES["digs deep"]),
        (sandbox, closed),
        (unwalled, closed),
    ):
        assert made.run(
            {"kind": "stdio", "program": left, "tests": [{"output": ""}] * 2}, QUICK
        ).passed
    assert not list(tmp_path.iterdir()) and not made._running
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_cell_goes_with_whoever_asked(sandbox):
    """Killed with no chance to clear up."""
    code = (
        "from lr_sglang.grading.sandbox import Sandbox, Limits\n"
        f"Sandbox({sandbox.wall()!r}).run({{'kind': 'stdio', 'program': 'import time; "
        "time.sleep(500)',"
        " 'tests': [{'output': ''}]}, Limits(seconds=100))"
    )
    asker = subprocess.Popen([sys.executable, "-c", code])
    try:
        until = time.monotonic() + 60
        while len(found := below(asker.pid)) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(found) >= 3
    finally:
        asker.kill()
        asker.wait()
    while any(os.path.exists(f"/proc/{pid}") for pid in found) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in found if os.path.exists(f"/proc/{pid}")]


def below(pid):
    """All descendants of a process."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(number) for number in file.read().split()]
    except OSError:
        return []
    return [number for child in children for number in (child, *below(child))]


def test_many_at_once(sandbox):
    job = {
        "kind": "stdio",
        "program": "print(input())",
        "tests": [{"input": "a\n", "output": "a"}] * 3,
    }
    with ThreadPoolExecutor(6) as pool:
        assert all(done.passed for done in pool.map(lambda _: sandbox.run(job), range(12)))


def test_a_cell_that_does_not_come_up_is_a_named_error(sandbox, monkeypatch):
    monkeypatch.setattr(
        isolation, "command", lambda *a: [sys.executable, "-S", "-c", "raise SystemExit('no wall')"]
    )
    with pytest.raises(SetupError, match="cannot be run on this machine") as raised:
        sandbox.run({"kind": "stdio", "program": "", "tests": [{"output": ""}]})
    assert "no wall" in raised.value.detail
