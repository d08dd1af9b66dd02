"""A crash of Python itself, and a test or a run that does not end, leave a trace of all threads: in a
file or on standard error, and after an overflow of any thread's stack.

``traced/sitecustomize.py`` is for the other processes of the tests.
"""

import ctypes
import faulthandler
import os
import sys
import threading
from collections.abc import Generator

import pytest

STACK_BYTES = 65536
# Seconds for a test's fixtures to end, and for the process after the last test.
GRACE_SECONDS = float(os.environ.get("LR_SGLANG_TESTS_GRACE", "300"))
stderr = 2  # while a test runs that is pytest's: ``leave_a_trace`` keeps the process's
DISABLE = 2  # SS_DISABLE of signal.h
libc = ctypes.CDLL(None)


class Stack(ctypes.Structure):
    """stack_t of signal.h."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def leave_a_trace() -> None:
    """Where LR_SGLANG_CRASH_FILE says, or as pytest has it. Python gives a second stack to the main
    thread only.
    """
    global stderr
    stderr = os.dup(2)
    if path := os.environ.get("LR_SGLANG_CRASH_FILE"):
        faulthandler.enable(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    if sys.platform == "linux":
        threading.Thread._bootstrap_inner = _with_a_second_stack  # type: ignore[attr-defined]


def _with_a_second_stack(thread, plain=threading.Thread._bootstrap_inner) -> None:
    room = ctypes.create_string_buffer(STACK_BYTES)
    libc.sigaltstack(ctypes.byref(Stack(ctypes.addressof(room), 0, STACK_BYTES)), None)
    try:
        plain(thread)
    finally:
        libc.sigaltstack(ctypes.byref(Stack(None, DISABLE, 0)), None)


def ends_within(seconds: float) -> None:
    """Ends this process with a trace of all threads, unless it is called again before."""
    faulthandler.dump_traceback_later(seconds, file=stderr, exit=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that does not hear pytest-timeout's alarm is ended by a thread of Python's own."""
    mark = item.get_closest_marker("timeout")
    limit = mark.args[0] if mark else item.config.getoption("timeout")
    ends_within(float(limit or item.config.getini("timeout")) + GRACE_SECONDS)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """The alarm rings once: fixtures of a test that it has ended have no other limit."""
    ends_within(GRACE_SECONDS)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """What is left then includes the end of the interpreter, which waits for threads."""
    ends_within(GRACE_SECONDS)
