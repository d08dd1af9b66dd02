"""The process in which the code of an answer runs: its limits, and what its interpreter refuses."""

from __future__ import annotations

import _posixsubprocess
import _signal  # type: ignore[import-not-found]
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from lr_sglang.grading.cell import walls

THREADS, FILES, TAIL = 64, 64, 2000
# What an answer on LeetCode may take as imported.
PRELUDE = """
import sys, os, re, math, heapq, bisect, string, random, copy, functools, itertools, collections, operator, json
from typing import *
from functools import *
from itertools import *
from collections import *
from heapq import *
from bisect import *
from math import *
from operator import *
from string import *
from copy import *
inf = float("inf")
pow = __builtins__["pow"] if isinstance(__builtins__, dict) else __builtins__.pow
"""

REFUSED = ("socket.", "subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.system", "os.spawn", "pty.", "ctypes.")
FOREIGN = ("_ctypes", "_cffi_backend")


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook, which nothing can take out again."""
    if event.startswith(REFUSED):
        raise PermissionError(f"{event} is not allowed in an answer")
    if event == "import" and str(arguments[0]).rpartition(".")[2] in FOREIGN:
        raise PermissionError(f"{arguments[0]} is not allowed in an answer")
    if event == "cpython.PyInterpreterState_New":  # which would not have this hook
        raise PermissionError("another interpreter is not allowed in an answer")
    if event in ("os.kill", "os.killpg"):
        raise PermissionError("signals are not allowed in an answer")


def refused(*_: object) -> NoReturn:
    """In place of what raises no event."""
    raise PermissionError("processes and signals are not allowed in an answer")


def lock_up(job: dict[str, Any], standing: Sequence[str]) -> None:
    """The limits of a prisoner. ``seconds`` of processor time; memory and file size in MiB."""
    os.setsid()
    seconds, memory, size = job["seconds"], job["memory"] << 20, job["file_size"] << 20
    limits = {
        resource.RLIMIT_CPU: (int(seconds) + 1, int(seconds) + 2),
        resource.RLIMIT_AS: (memory, memory),
        resource.RLIMIT_FSIZE: (size, size),
        resource.RLIMIT_NOFILE: (FILES, FILES),
        resource.RLIMIT_CORE: (0, 0),
    }
    if walls.PROCESSES in standing:  # elsewhere it would count what else the user runs
        limits[resource.RLIMIT_NPROC] = (THREADS, THREADS)
    for what, (soft, hard) in limits.items():
        _, most = resource.getrlimit(what)
        most = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(what, (min(soft, most), most))
    walls.drop_capabilities()
    for name in ("ctypes", "_ctypes"):
        sys.modules[name] = None  # type: ignore[assignment]
    for module, name in (
        (_posixsubprocess, "fork_exec"),
        (_signal, "pidfd_send_signal"),
        (signal, "pidfd_send_signal"),
    ):
        setattr(module, name, refused)
    sys.addaudithook(refuse)


def serve(job: dict[str, Any], arguments: Sequence[Any], token: str, report: int) -> None:
    """Runs the program and one test. Anything but the right report is a failure, so that leaving early is one too."""
    code = compile(job["program"], "answer.py", "exec")
    if job["kind"] == "stdio":
        names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        exec(code, names)
        return
    names = {"__name__": "answer", "__builtins__": __builtins__}
    if job["kind"] == "asserts":
        exec(code, names)
        exec(compile(job["test"], "test.py", "exec"), names)
        os.write(report, token.encode())
        return
    exec(compile(PRELUDE, "prelude.py", "exec"), names)
    exec(code, names)
    owner = names["Solution"]() if "Solution" in names else None
    function = getattr(owner, job["function"], None) or names[job["function"]]
    answer = json.dumps(function(*arguments), default=plain)
    done = 0
    while done < len(answer):
        done += os.write(report, answer[done:].encode())


def plain(value: Any) -> Any:
    """What JSON does not know: numpy's numbers and arrays, sets, and whatever can be gone through."""
    return value.tolist() if hasattr(value, "tolist") else list(value)


def prisoner(
    job: dict[str, Any],
    arguments: Sequence[Any],
    token: str,
    report: int,
    standing: Sequence[str],
    streams: Sequence[int],
) -> None:
    """Never returns.

    Args:
        arguments: of the function that is called, for such tests.
        streams: files for its input, output and errors.
    """
    status = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.dup2(report, 3)
        os.closerange(4, 256)
        lock_up(job, standing)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "w" if n else "r", closefd=False) for n in range(3))
        sys.argv = ["answer.py"]
        serve(job, arguments, token, 3)
        status = 0
    except SystemExit as error:
        status = 0 if error.code in (None, 0) else 1
    except BaseException as error:  # noqa: BLE001 - whatever it was, it is the answer's
        with contextlib.suppress(BaseException):
            os.write(2, f"{type(error).__name__}: {error}"[:TAIL].encode("utf-8", "replace"))
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(status)
