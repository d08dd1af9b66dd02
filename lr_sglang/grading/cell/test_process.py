"""The process of one test: its limits, then the program.

Four kinds of job. ``stdio`` runs a program with its standard streams. ``calls`` reports a
function's return value as JSON. The two others work together, in a cell each: ``serve`` runs a
program and answers remote calls of one of its functions; ``asserts`` runs tests that are code, in
which that function is a stand-in that makes these calls.
"""

from __future__ import annotations

import atexit
import builtins
import io
import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from . import kernel
from .values import pack, unpack

REPORT, ASK, REPLY = 3, 4, 5  # descriptors, after the standard streams
PASSED = b"passed"
THREADS, FILES, MAX_REPLY = 64, 64, 16 << 20
# The imports that LeetCode provides to an answer.
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


def lock_up(job: dict[str, Any], user: int, walled: bool) -> None:
    """Sets limits and drops privileges for good. ``seconds`` of processor time; memory and file
    size in MiB.

    Raises:
        OSError: the kernel refused, or the user cannot read what Python needs.
    """
    os.setsid()
    seconds, memory, size = job["seconds"], job["memory"] << 20, job["file_size"] << 20
    limits = {
        resource.RLIMIT_CPU: (int(seconds) + 1, int(seconds) + 2),
        resource.RLIMIT_AS: (memory, memory),
        resource.RLIMIT_FSIZE: (size, size),
        resource.RLIMIT_NOFILE: (FILES, FILES),
        resource.RLIMIT_CORE: (0, 0),
    }
    if walled:  # without isolation it would count all processes of the user
        limits[resource.RLIMIT_NPROC] = (THREADS, THREADS)
    for what, (soft, hard) in limits.items():
        _, most = resource.getrlimit(what)
        most = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(what, (min(soft, most), most))
    if walled:
        needed = [path for path in sys.path if os.path.isdir(path)]
        kernel.become(user)
        for path in needed:
            os.listdir(path)
    kernel.drop_capabilities()
    kernel.filter_system_calls()


def execute(job: dict[str, Any], program: Any) -> None:
    """Executes the job; raises what the program raises."""
    if job["kind"] == "stdio":
        exec(program, {"__name__": "__main__", "__builtins__": __builtins__})
        return
    names: dict[str, Any] = {"__name__": "answer", "__builtins__": __builtins__}
    if job["kind"] == "calls":
        exec(compile(PRELUDE, "prelude.py", "exec"), names)
    exec(program, names)
    if job["kind"] == "asserts":
        names[job["function"]] = stand_in
        exec(compile(job["test"], "test.py", "exec"), names)
        os.write(REPORT, PASSED)
        return
    owner = names["Solution"]() if job["kind"] == "calls" and "Solution" in names else None
    function = getattr(owner, job["function"], None) or names[job["function"]]
    if job["kind"] == "serve":
        serve(function)
        return
    answer = json.dumps(function(*job["arguments"]), default=plain).encode()
    done = 0
    while done < len(answer):
        done += os.write(REPORT, answer[done:])


def plain(value: Any) -> Any:
    """A JSON form of values that JSON does not support: numpy's numbers and arrays, sets, and other
    iterables.
    """
    return value.tolist() if hasattr(value, "tolist") else list(value)


def serve(function: Callable[..., Any]) -> None:
    """Calls the function as often as the tests ask."""
    with open(ASK, "rb", closefd=False) as asked, open(REPLY, "wb", closefd=False) as replies:
        for line in asked:
            arguments, named = (unpack(part) for part in json.loads(line))
            try:
                reply = [True, pack(function(*arguments, **named))]
            except Exception as error:  # noqa: BLE001 - the tests may expect it
                reply = [False, type(error).__name__, str(error)[:1000]]
            replies.write(json.dumps(reply).encode() + b"\n")
            replies.flush()


def stand_in(*arguments: Any, **named: Any) -> Any:
    """Stands in for the function under test: calls it in the other cell.

    Raises:
        Exception: what the function raised, if it is built in.
        RuntimeError: another exception, or no reply.
    """
    question = json.dumps([pack(arguments), pack(named)]).encode() + b"\n"
    with (
        io.FileIO(ASK, "wb", closefd=False) as asked,
        io.FileIO(REPLY, "rb", closefd=False) as replies,
    ):
        while question:
            question = question[asked.write(question) :]
        line = bytearray()
        while not line.endswith(b"\n"):
            part = replies.read(1 << 16)
            if not part or len(line) > MAX_REPLY:
                raise RuntimeError("the function did not reply")
            line += part
    done, *rest = json.loads(line)
    if done is True:
        return unpack(*rest)
    kind = getattr(builtins, str(rest[0]), RuntimeError)
    raise (
        kind(rest[1])
        if isinstance(kind, type) and issubclass(kind, Exception)
        else RuntimeError(*rest)
    )


def run(
    job: dict[str, Any], folder: str, user: int, walled: bool, started: Callable[[], None]
) -> NoReturn:
    """Calls ``started`` before any code of the answer runs, and never returns.

    The process ends as Python does, with status 1 after an error, but without Python's cleanup of
    modules.
    """
    lock_up(job, user, walled)
    os.chdir(folder)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(n, "w" if n else "r", closefd=False) for n in range(3)
    )
    sys.argv = ["answer.py"]
    started()
    status = 1
    try:
        status = finish(lambda: execute(job, compile(job["program"], "answer.py", "exec")))
        if threading := sys.modules.get("threading"):
            status = finish(threading._shutdown) or status
        status = finish(atexit._run_exitfuncs) or finish(sys.stdout.flush) or status
    finally:
        os._exit(status)


def finish(function: Callable[[], Any]) -> int:
    """Calls the function; returns Python's exit status for it, and writes errors to
    standard error.
    """
    try:
        function()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
    except BaseException:  # noqa: BLE001 - the answer's code may raise anything
        import traceback  # slow to import, and seldom needed

        traceback.print_exc(limit=-3)
    else:
        return 0
    sys.stderr.flush()
    return 1
