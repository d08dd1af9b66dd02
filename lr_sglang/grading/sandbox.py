"""Runs code of an answer isolated, in cells without network and without files of the user, under
limits.

The expected results stay in this process, from which no answer is forked: programs report theirs,
and we compare here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Self

from lr_sglang.errors import SetupError
from lr_sglang.grading import isolation
from lr_sglang.grading.cell.test_process import PASSED
from lr_sglang.grading.cells import ERRORS, OUTPUT, REPORT, Cell, Run, watch
from lr_sglang.grading.outputs import same_output, same_value

PERMIT, UNSAFE = "--allow-code-execution", "--unsafe-code-execution"
SOON = 5.0  # seconds
CHATTER = 1 << 16  # bytes of output that are read beyond twice the expected size
MAX_ERRORS, TAIL = (
    16 << 20,
    500,
)  # bytes of standard error that are allowed, characters that are kept as a reason


@dataclass(frozen=True)
class Limits:
    """Limits of a program.

    Attributes:
        seconds: of processor time for each test.
        memory, file_size: MiB, of each process and of each file.
        total: seconds, for all tests together.
    """

    seconds: float = 10.0
    memory: int = 1024
    file_size: int = 16
    total: float = 300.0

    @property
    def patience(self) -> float:
        """Seconds for one test, by the clock."""
        return self.seconds * 3 + 5


@dataclass(frozen=True)
class Outcome:
    """The result of a program. ``walls`` names its isolation."""

    passed: bool
    reason: str
    walls: tuple[str, ...]


class Sandbox:
    """Runs programs. Any thread may ask. A context manager: leaving it ends what is running.

    Args:
        wall: the kind of isolation; by default the strongest that works here (see ``standing``).
        unsafe: whether programs are run even without isolation.
    """

    def __init__(self, wall: str | None = None, unsafe: bool = False) -> None:
        self._wall, self._unsafe = wall, unsafe
        self._lock = threading.Lock()
        self._running: set[Cell] = set()
        self._closed = False

    def wall(self) -> str:
        """The kind of isolation that programs will run in.

        Raises:
            SetupError: there is none, and that is not allowed.
        """
        found = self._wall or next(iter(standing()), isolation.NONE)
        if found == isolation.NONE and not self._unsafe:
            raise SetupError(
                "code of answers cannot be kept apart on this machine, so it is not run",
                hint="install bubblewrap, or permit user namespaces; on a machine that is "
                "thrown away afterwards "
                f"(a container, a virtual machine) with nothing of value, add {UNSAFE}",
            )
        return found

    def run(self, job: dict[str, Any], limits: Limits | None = None) -> Outcome:
        """Runs a program with its tests, until one fails.

        Args:
            job: ``program``, ``tests``, and ``kind``: ``stdio``; ``calls`` with ``function``; or
                ``asserts`` with ``function``, ``test`` (code) and ``before`` (code that the tests
                need).

        Raises:
            SetupError: this machine cannot do it, or the sandbox was closed.
        """
        limits, wall = limits or Limits(), self.wall()
        run = self._asserts if job["kind"] == "asserts" else self._all
        try:
            reason = run(wall, job, limits)
        except SetupError:
            if not self._closed:
                raise
        except OSError as error:
            raise SetupError(
                f"code of answers cannot be run: {error}", hint="is memory or the disk full?"
            ) from error
        if self._closed:
            raise SetupError("grading was stopped")
        return Outcome(not reason, reason, (wall,))

    def close(self) -> None:
        """Ends what is running. Idempotent."""
        with self._lock:
            self._closed = True
            for cell in self._running:
                cell.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _cell(self, wall: str) -> Iterator[Cell]:
        folder = tempfile.mkdtemp(prefix="lr-answer-") if wall == isolation.NONE else ""
        try:
            with self._lock:
                if self._closed:
                    raise SetupError("grading was stopped")
                cell = Cell(wall, folder)
                self._running.add(cell)
            try:
                yield cell
            finally:
                with self._lock:
                    self._running.discard(cell)
                    cell.end()
                cell.close()
        finally:
            if folder:
                _remove(folder)

    def _all(self, wall: str, job: dict[str, Any], limits: Limits) -> str:
        """Why a test fails; empty if none does."""
        deadline = time.monotonic() + limits.total
        about = {key: job[key] for key in ("kind", "program", "function") if key in job} | asdict(
            limits
        )
        stream = OUTPUT if job["kind"] == "stdio" else REPORT
        with self._cell(wall) as cell:
            for number, test in enumerate(job["tests"], 1):
                expected = test["output"] if stream == OUTPUT else json.dumps(test["expected"])
                most = {
                    ERRORS: MAX_ERRORS,
                    stream: 2 * len(expected.encode("utf-8", "replace")) + CHATTER,
                }
                given = {**about, "arguments": test.get("arguments", ())}
                with contextlib.closing(Run(cell, given, test.get("input", ""), most)) as run:
                    seconds = min(limits.patience, deadline - time.monotonic())
                    late = not watch([run], seconds)
                    if reason := _failure(run, wall, limits, late, number > 1) or _difference(
                        run, test
                    ):
                        return f"test {number}: {reason}"
        return ""

    def _asserts(self, wall: str, job: dict[str, Any], limits: Limits) -> str:
        """As ``_all``, but the tests run in a second cell, and call the function in the answer's
        cell.
        """
        about = {"function": job["function"], **asdict(limits)}
        with ExitStack() as stack:
            cells = [stack.enter_context(self._cell(wall)) for _ in range(2)]
            with ExitStack() as pipes:
                ask, asked, reply, replied = numbers = [*os.pipe(), *os.pipe()]
                for number in numbers:
                    pipes.callback(os.close, number)
                answer = {**about, "kind": "serve", "program": job["program"]}
                served = Run(cells[0], answer, "", {ERRORS: MAX_ERRORS}, [ask, replied])
                stack.callback(served.close)
                tests = {**about, "kind": "asserts", "program": job["before"], "test": job["test"]}
                most = {REPORT: len(PASSED), ERRORS: MAX_ERRORS}
                tester = Run(cells[1], tests, "", most, [asked, reply])
                stack.callback(tester.close)
            late = not watch([tester, served], min(limits.patience, limits.total))
            if not late and tester.data[REPORT] == PASSED:
                return ""
            if not late and served.status is None:  # it ends soon, as its callers have ended
                watch([served], SOON)
            both = [_failure(run, wall, limits, late, False) for run in (served, tester)]
            return next(filter(None, both), "ended before its tests did")


def _failure(run: Run, wall: str, limits: Limits, late: bool, again: bool) -> str:
    """Why a program failed; empty if it did not.

    Args:
        late: whether it took too long.
        again: whether code of the answer ran in this cell before; a failure is then the answer's
            fault.

    Raises:
        SetupError: nothing of the answer ran.
    """
    if not run.started and not again:
        raise SetupError(
            "code of answers cannot be run on this machine: the process around it ended before "
            "it began",
            hint="Linux 5.12 or later on x86-64 is needed, and enough memory",
            detail=run.cell.said() + run.data[ERRORS].decode("utf-8", "replace"),
        )
    if run.too_long:
        return (
            "wrote more than is expected"
            if run.too_long != ERRORS
            else "wrote too much to standard error"
        )
    if late:
        return f"it did not end within {min(limits.patience, limits.total):g} s"
    if run.status is None:
        return "the process around it ended"
    if os.WIFSIGNALED(run.status):
        number = os.WTERMSIG(run.status)
        known: dict[int, str] = {
            signal.SIGXCPU: f"more than {limits.seconds:g} s of processor time",
            signal.SIGXFSZ: "a file grew too long",
            signal.SIGKILL: "killed",
        }
        return known.get(number, f"ended by signal {number}")
    if os.WEXITSTATUS(run.status):
        said = run.data[ERRORS].decode("utf-8", "replace").strip().split("\n")[-1]
        # Without isolation, the message could quote a file of the user.
        return said[:TAIL] if said and wall != isolation.NONE else "ended with an error"
    return ""


def _difference(run: Run, test: dict[str, Any]) -> str:
    """How the output or the return value of a test differs from the expected one; empty if it does
    not.
    """
    if "expected" in test:
        same = same_value(bytes(run.data[REPORT]), test["expected"])
        if same is None:
            return "returned nothing that can be compared"
    else:
        same = same_output(run.data[OUTPUT].decode("utf-8", "replace"), test["output"])
    return "" if same else "another result than expected"


@cache
def standing() -> tuple[str, ...]:
    """The kinds of isolation that work on this machine, the strongest first; each is tried once."""
    job = {"kind": "stdio", "program": "", "tests": [{"output": ""}]}
    found = []
    for name in isolation.candidates():
        with Sandbox(name) as sandbox, contextlib.suppress(SetupError):
            if sandbox.run(job).passed:
                found.append(name)
    return tuple(found)


def _remove(folder: str) -> None:
    """Removes a test's folder, by commands: an answer may leave it without permissions or too deep
    for shutil.
    """
    for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        subprocess.run([*command, folder], stderr=subprocess.DEVNULL, check=False)
