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


def one(
    job: dict[str, Any], test: dict[str, Any], standing: list[str], clear: Callable[[], None], streams: list[int]
) -> str:
    """Why a test fails; empty where it passes."""
    for stream in streams:
        os.ftruncate(stream, 0)
        os.lseek(stream, 0, os.SEEK_SET)
    with open(streams[0], "w", encoding="utf-8", errors="replace", closefd=False) as file:
        file.write(test.get("input", ""))
    os.lseek(streams[0], 0, os.SEEK_SET)
    token = secrets.token_hex(16)
    reading, report = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        arguments = test.get("arguments", ())
        for each in (test, *job["tests"]):  # an answer can look through the frames below its own
            each.clear()
        prisoner(job, arguments, token, report, standing, streams)
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
        return read(streams[2], TAIL).strip() or "ended with an error"
    return compare(job, test, token, said, streams[1])


def compare(job: dict[str, Any], test: dict[str, Any], token: str, said: bytes, output: int) -> str:
    """What is wrong with what a test reported, or printed into the file ``output``; empty if nothing is."""
    if job["kind"] == "asserts":
        return "" if said == token.encode() else "ended before its tests did"
    if job["kind"] == "calls":
        try:
            same = json.loads(said) == test["expected"]
        except (ValueError, RecursionError):
            return "returned nothing that can be compared"
    else:
        expected = test["output"]
        same = same_output(read(output, len(expected) * 2 + CHATTER), expected)
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
    said, deadline, open_ends = bytearray(), time.monotonic() + seconds, [os.pidfd_open(child), reading]
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
            return bytes(said), os.waitpid(child, 0)[1]
    os.close(ended)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return bytes(said), None


def read(file: int, most: int) -> str:
    """The beginning of a file."""
    return os.pread(file, most, 0).decode("utf-8", "replace")


def unnamed() -> int:
    """A file that no answer can put something else in the place of."""
    file = os.open("unnamed", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink("unnamed")
    return file


def warden(job: dict[str, Any], standing: list[str]) -> dict[str, Any]:
    """Test after test, until one fails."""
    clear = everything_else if walls.PROCESSES in standing else descendants
    streams = [unnamed() for _ in range(3)]
    for number, test in enumerate(job["tests"], 1):
        if reason := one(job, {**test, "number": number}, standing, clear, streams):
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
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without this list
        return []


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
        if walls.PROCESSES in standing and walls.FILES in standing:
            walls.own_processes()
        verdict = warden(job, standing)
        verdict["walls"] = standing or ["sockets and processes refused by the interpreter"]
        os.write(verdicts, json.dumps(verdict).encode())
        os._exit(0)
    os.waitpid(child, 0)
