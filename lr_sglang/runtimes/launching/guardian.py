"""Runs one command, and ends all its processes when the launcher ends, however that happens
(Linux).

``python -I -S guardian.py FD FOLDER COMMAND...``: FD is the reading end of a pipe whose writing end
only the launcher holds. When that end closes, by the launcher or by its death, the command and all
its descendants are ended. FOLDER, unless it is '', is removed with them.

- The guardian leads the command's session, ends with its exit status, and adopts the orphans of its
  descendants as a "child subreaper". It imports nothing of the package.
- It is two processes: if the inner one is killed, the outer one ends the command's processes; if
  the outer one is killed, the inner one ends them.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time

# Seconds between asking and killing; SGLang alone would drain its requests for much longer.
GRACE = 1.0
END_POLL = 0.1
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main(pipe: int, folder: str, command: list[str]) -> int:
    """Runs the command until it ends, the pipe closes or a signal asks this process to end.

    Returns:
        The command's exit status, 128 + N after signal N, as a shell would say it.
    """
    parent = os.getppid()
    me = os.getpid()
    asked: list[int] = []
    # A handler, not SIG_IGN: handlers are reset when the command is executed, ignored signals stay
    # ignored.
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(name, lambda number, _: asked.append(number))
    os.set_inheritable(pipe, False)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    inner = os.fork()
    if inner == 0:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        os._exit(_guard(pipe, folder, command, me, asked))
    os.close(pipe)
    while (ended := os.waitpid(inner, os.WNOHANG))[0] == 0:
        # The parent's death is checked as well, because a forked copy of the parent may hold the
        # pipe open.
        if asked or os.getppid() != parent:
            os.kill(inner, signal.SIGTERM)
            os.kill(inner, signal.SIGCONT)  # it may have been stopped
        time.sleep(END_POLL / 2)
    _end_all(folder)
    return _shown(os.waitstatus_to_exitcode(ended[1]))


def _guard(pipe: int, folder: str, command: list[str], parent: int, asked: list[int]) -> int:
    """Runs the inner process; returns the command's exit status."""
    libc = ctypes.CDLL(None)
    child = subprocess.Popen(
        command, preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    )
    closing = select.poll()  # not select(), which fails for descriptors above 1023
    closing.register(pipe, select.POLLIN)
    while child.poll() is None:
        if closing.poll(END_POLL * 1000) or asked or os.getppid() != parent:
            _ask_to_end(child)
            break
    status = child.poll()
    _end_all(folder)
    return _shown(-signal.SIGKILL if status is None else status)


def _shown(status: int) -> int:
    return status if status >= 0 else 128 - status


def _ask_to_end(child: "subprocess.Popen[bytes]") -> None:
    os.killpg(0, signal.SIGTERM)
    limit = time.monotonic() + GRACE
    while child.poll() is None and time.monotonic() < limit:
        time.sleep(END_POLL / 2)


def _end_all(folder: str) -> None:
    """Kills the children, then the orphans that they leave, until none is left; then removes the
    folder. Both processes do: the other may have been killed.
    """
    while True:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            time.sleep(END_POLL / 10)
    shutil.rmtree(folder, ignore_errors=True)  # '' names none


def _children() -> list[int]:
    me = os.getpid()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                # The name in brackets may hold spaces; the parent is the second field behind it.
                if int(file.read().rpartition(b")")[2].split()[1]) == me:
                    found.append(int(entry))
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
