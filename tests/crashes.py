"""A crash of Python itself leaves a trace of all threads: in a file, and after an overflow of any
thread's stack.

``traced/sitecustomize.py`` is for the other processes of the tests.
"""

import ctypes
import faulthandler
import os
import sys
import threading

STACK_BYTES = 65536
DISABLE = 2  # SS_DISABLE of signal.h
libc = ctypes.CDLL(None)


class Stack(ctypes.Structure):
    """stack_t of signal.h."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def leave_a_trace() -> None:
    """Where LR_SGLANG_CRASH_FILE says, or as pytest has it. Python gives a second stack to the main
    thread only.
    """
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
