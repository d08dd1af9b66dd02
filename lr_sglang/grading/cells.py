"""Cells, the isolated processes that run tests of an answer, as seen from outside; and the streams
of the tests.
"""

from __future__ import annotations

import _socket
import array
import contextlib
import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from lr_sglang.grading import isolation
from lr_sglang.grading.cell.first_process import STARTED

OUTPUT, ERRORS, REPORT = "output", "errors", "report"
START_SECONDS = 60.0  # for a cell to come up, on a busy machine
ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Cell:
    """A cell. It ends with ``close``, and with the thread that made it.

    Args:
        folder: where tests get their folders, if there is no isolation.
    """

    def __init__(self, wall: str, folder: str) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.errors = os.memfd_create("errors")
        try:
            # Nothing of our own environment: it may hold keys.
            env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"}
            with theirs:
                self.process = subprocess.Popen(
                    isolation.command(wall, theirs.fileno(), folder),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self.errors,
                    env=env,
                    cwd="/",
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except BaseException:
            self.control.close()
            os.close(self.errors)
            raise

    def said(self) -> str:
        """The cell's own errors, from before any code of an answer ran."""
        return os.pread(self.errors, 2000, 0).decode("utf-8", "replace").strip()

    def end(self) -> None:
        """Kills it, from any thread. Its other processes end with its namespace, or with their
        parent.
        """
        if self.process.returncode is None:  # else another process may have its pid by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends it, and waits until it has ended."""
        self.end()
        self.process.wait()
        self.control.close()
        os.close(self.errors)


class Run:
    """One test's program in a cell, from its start.

    Args:
        job: the input of ``cell/test_process.py``.
        text: for its standard input.
        most: bytes, by stream (``OUTPUT``, ``ERRORS``, ``REPORT``); a stream that is not named is
            not read.
        extra: further descriptors that it gets.

    Attributes:
        data: what was read, by stream.
        started: whether the program's own code may have run.
        status: as of ``os.waitpid``, once it has ended.
        too_long: the first stream on which there was more than allowed.
    """

    def __init__(
        self,
        cell: Cell,
        job: dict[str, Any],
        text: str,
        most: dict[str, int],
        extra: Sequence[int] = (),
    ) -> None:
        self.cell, self.most = cell, most
        self.data = {name: bytearray() for name in most}
        self.ends: dict[str, int] = {}
        self.started = False
        self.status: int | None = None
        self.too_long = ""
        theirs = [sealed(json.dumps(job).encode()), sealed(text.encode("utf-8", "replace"))]
        try:
            for name in (OUTPUT, ERRORS, REPORT):
                if name in most:
                    self.ends[name], writing = os.pipe()
                    theirs.append(writing)
                else:
                    theirs.append(os.open(os.devnull, os.O_WRONLY))
            numbers = array.array("i", [*theirs, *extra])
            with contextlib.suppress(OSError):  # if the cell has ended, ``learn`` notices it
                cell.control.sendmsg([b"+"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
        except BaseException:
            self.close()
            raise
        finally:
            for number in theirs:
                os.close(number)

    def read(self, name: str) -> bool:
        """Reads a part of a stream; returns whether that was its last, or the program has written
        too much.
        """
        part = os.read(self.ends[name], 1 << 16)
        self.data[name] += part
        if len(self.data[name]) > self.most[name]:
            self.too_long = self.too_long or name
            self.cell.end()
        return not part or bool(self.too_long)

    def learn(self) -> bool:
        """Reads a message: the program's start, its status, or the cell's end; returns whether it
        was the last.
        """
        said = b""
        with contextlib.suppress(ConnectionError):
            said = self.cell.control.recv(4)
        if said == STARTED:
            self.started = True
            return False
        if said:
            self.status = int.from_bytes(said, "little")
        return True

    def close(self) -> None:
        """Closes the streams. Idempotent."""
        while self.ends:
            os.close(self.ends.popitem()[1])


def sealed(data: bytes) -> int:
    """A read-only file in memory, positioned at its beginning."""
    number = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(number, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(number, 0, os.SEEK_SET)
    fcntl.fcntl(number, fcntl.F_ADD_SEALS, ALL_SEALS)
    return number


def watch(runs: Sequence[Run], seconds: float) -> bool:
    """Reads the streams of programs that run together, until the first program and its streams have
    ended.

    A cell whose program writes too much is killed.

    Args:
        seconds: by the clock, from when all have started.

    Returns:
        Whether it ended in time.
    """
    deadline, begun = time.monotonic() + START_SECONDS + seconds, False
    with selectors.DefaultSelector() as selector:
        for run in runs:
            selector.register(run.cell.control, selectors.EVENT_READ, (run, ""))
            for name, end in run.ends.items():
                selector.register(end, selectors.EVENT_READ, (run, name))
        while any(key.data[0] is runs[0] for key in selector.get_map().values()):
            if not begun and all(run.started for run in runs):
                deadline, begun = time.monotonic() + seconds, True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for key, _ in selector.select(left):
                run, name = key.data
                if run.read(name) if name else run.learn():
                    selector.unregister(key.fileobj)
    return True
