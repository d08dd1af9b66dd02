"""Runs the code of an answer: reads a job as JSON and writes the verdict as JSON.

Three processes. The *keeper* (``main``) takes itself out of the network, the other processes and all files but its own
folder, as far as the kernel lets it. The *warden*, its child, is the first process of the new process namespace: it
starts a *prisoner* for every test by fork, waits for it, kills whatever it left behind, and compares. A prisoner has
resource limits and no capabilities, and its interpreter refuses sockets, processes and foreign code. Standard library
only, so that a cell opens in a tenth of a second.
"""

from __future__ import annotations

import contextlib
import decimal
import json
import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from lr_sglang.grading.cell import walls
from lr_sglang.grading.cell.prisoner import TAIL, prisoner

CHATTER = 1 << 20  # bytes of output that are looked at besides what is expected


def one(job: dict[str, Any], test: dict[str, Any], standing: list[str], clear: Callable[[], None]) -> str:
    """Why a test fails; empty where it passes."""
    with open("stdin", "w", encoding="utf-8") as file:
        file.write(test.get("input", ""))
    for name in ("stdout", "stderr"):
        with contextlib.suppress(OSError):
            os.unlink(name)
    token = secrets.token_hex(16)
    reading, report = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        prisoner(job, test, token, report, standing)
    os.close(report)
    said, status = wait(child, reading, job["seconds"] * 3 + 5)
    clear()
    os.close(reading)
    if status is None:
        return f"it did not end within {job['seconds'] * 3 + 5:g} s"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known: dict[int, str] = {
            signal.SIGXCPU: f"more than {job['seconds']:g} s of processor time",
            signal.SIGXFSZ: "a file grew too long",
            signal.SIGKILL: "killed",
        }
        return known.get(number, f"ended by signal {number}")
    if os.WEXITSTATUS(status):
        return read("stderr", TAIL).strip() or "ended with an error"
    return compare(job, test, token, said)


def compare(job: dict[str, Any], test: dict[str, Any], token: str, said: bytes) -> str:
    """What is wrong with what a test printed; empty if nothing is."""
    if job["kind"] == "asserts":
        return "" if said == token.encode() else "ended before its tests did"
    if job["kind"] == "calls":
        try:
            returned = json.loads(said)
        except ValueError:
            return "returned nothing that can be compared"
        same = returned == test["expected"]
    else:
        expected = test["output"]
        same = same_output(read("stdout", len(expected) * 2 + CHATTER), expected)
    return "" if same else f"test {test['number']}: another result than expected"


def same_output(written: str, expected: str) -> bool:
    """Line by line, without spaces at the ends; numbers by value."""
    ours, theirs = ([line.strip() for line in text.strip().splitlines()] for text in (written, expected))
    return len(ours) == len(theirs) and all(same_line(a, b) for a, b in zip(ours, theirs, strict=True))


def same_line(one: str, other: str) -> bool:
    """Whether two lines are equal, as text or number by number."""
    if one == other:
        return True
    try:
        return [decimal.Decimal(part) for part in one.split()] == [decimal.Decimal(part) for part in other.split()]
    except (decimal.InvalidOperation, ValueError):
        return False


def wait(child: int, reading: int, seconds: float) -> tuple[bytes, int | None]:
    """What the prisoner reported, and its status; none where it had to be killed. More than 64 MiB is not read."""
    said, deadline, open_ends = b"", time.monotonic() + seconds, [os.pidfd_open(child), reading]
    ended = open_ends[0]
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select(open_ends, [], [], left)
        if reading in ready:
            part = os.read(reading, 1 << 16)
            if not part or len(said) > 64 << 20:
                open_ends.remove(reading)
            said += part
        elif ended in ready:
            os.close(ended)
            return said, os.waitpid(child, 0)[1]
    os.close(ended)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return said, None


def read(name: str, most: int) -> str:
    """The beginning of a file; empty where it cannot be read."""
    try:
        with open(name, "rb") as file:
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


def warden(job: dict[str, Any], standing: list[str]) -> dict[str, Any]:
    """Test after test, until one fails."""
    clear = everything_else if walls.PROCESSES in standing else descendants
    try:
        compile(job["program"], "answer.py", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        return {"passed": False, "reason": f"{type(error).__name__}: {error}"[:TAIL]}
    for number, test in enumerate(job["tests"], 1):
        if reason := one(job, {**test, "number": number}, standing, clear):
            return {"passed": False, "reason": reason}
    return {"passed": True, "reason": ""}


def everything_else() -> None:
    """As the first process of a namespace: kills all others in it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    reap()


def descendants() -> None:
    """Kills whatever was started, which came to this process when its parent died (it is a subreaper)."""
    while found := children():
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap()


def children() -> list[int]:
    """Process ids of what we started, or inherited."""
    return [int(pid) for pid in read(f"/proc/self/task/{os.getpid()}/children", 1 << 16).split()]


def reap() -> None:
    """Takes leave of those that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0)[0]:
            pass


def main() -> None:
    """The keeper."""
    job = json.load(sys.stdin)
    verdicts = os.dup(1)
    walls.die_with_parent()
    os.chdir(job["folder"])
    standing = walls.isolate(job["folder"]) if job["namespaces"] else []
    os.chdir(job["folder"])  # what was bound over it
    child = os.fork()
    if child == 0:
        walls.die_with_parent()
        walls.stand_alone()
        verdict = warden(job, standing)
        verdict["walls"] = standing or ["sockets and processes refused by the interpreter"]
        os.write(verdicts, json.dumps(verdict).encode())
        os._exit(0)
    os.waitpid(child, 0)
