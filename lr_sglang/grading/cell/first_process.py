"""The first process of a cell: it forks a process for each test, and removes what the test leaves.

It gets programs and inputs only, never the expected results.
"""

from __future__ import annotations

import _socket
import array
import contextlib
import fcntl
import gc
import itertools
import json
import os
import signal
import sys
from typing import Any

from . import kernel, test_process

STARTED = b"+"
MAX_DESCRIPTORS = 7  # the job, the standard streams, and up to three more


def main() -> None:
    """Starts a test for each message on the control socket; its arguments are that socket and the
    wall as JSON.
    """
    control, wall = _socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    kernel.die_with_parent()
    with contextlib.suppress(OSError):  # if memory runs out, the kernel kills the cell first
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    sys.path += wall["packages"]
    if wall["name"] == "namespaces":
        kernel.leave_namespaces()
        if child := os.fork():
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
        kernel.die_with_parent()
        kernel.change_root(wall["binds"], wall["links"], wall["covers"])
    kernel.hide_memory()
    walled = wall["name"] != "none"
    user = wall["user"] if os.getuid() == 0 else os.getuid()
    gc.freeze()  # the collector then touches, and so copies, no older object after the fork
    for number in itertools.count():
        received = receive(control)
        if not received:
            return
        if walled:
            folder = kernel.fresh_folder(user)
        else:
            folder = f"{wall['folder']}/{number}"
            os.mkdir(folder, 0o700)
        child = os.fork()
        if child == 0:
            start(control, received, folder, user, walled)
        for descriptor in received:
            os.close(descriptor)
        status = wait(child)
        if os.getpid() == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        control.send(status.to_bytes(4, "little"))


def start(control: Any, received: list[int], folder: str, user: int, walled: bool) -> None:
    """Sets up the streams in the new process and runs the test."""
    # To numbers above those that the test gets.
    kept, *moved = [
        fcntl.fcntl(number, fcntl.F_DUPFD, 16) for number in (control.detach(), *received)
    ]
    with os.fdopen(moved[0], "rb") as file:
        job = json.load(file)
    for number, stream in enumerate(moved[1:]):
        os.dup2(stream, number)
    os.closerange(len(moved) - 1, kept)
    os.closerange(kept + 1, 256)

    def started() -> None:
        """Reports the start, through a socket because the answer's code could read a pipe."""
        only = _socket.socket(fileno=kept)
        only.send(STARTED)
        only.close()

    os.environ.update(HOME=folder, TMPDIR=folder)
    test_process.run(job, folder, user, walled, started)


def receive(control: Any) -> list[int]:
    """The descriptors of the next test; empty if there is none."""
    numbers = array.array("i")
    text, extra, *_ = control.recvmsg(1, _socket.CMSG_SPACE(MAX_DESCRIPTORS * numbers.itemsize))
    for _, _, data in extra if text else ():
        numbers.frombytes(data)
    return list(numbers)


def wait(child: int) -> int:
    """Waits for a child's exit status; other processes that end meanwhile are reaped."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status
