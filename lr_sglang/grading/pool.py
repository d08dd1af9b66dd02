"""Worker processes for Math-Verify: each verdict has limits of time and memory, at which its worker
is killed and replaced.

Math-Verify limits its time by SIGALRM, which only a main thread can receive, and which cannot
interrupt the computation of a huge power.
"""

from __future__ import annotations

import logging
import multiprocessing
import resource
import signal
import threading
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from multiprocessing import resource_tracker
from typing import Any

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from lr_sglang.errors import SetupError
from lr_sglang.grading import algebra

GRADE_SECONDS = 15.0  # for a verdict
START_SECONDS = 120.0  # for a worker to get ready
WORKER_MEMORY = 4 << 30  # bytes of a worker's address space
_HINT = "try: python -c 'import math_verify'"
ORPHANED = 60  # seconds of processor time for one verdict, in a worker whose owner has gone


class GradingPool(AbstractContextManager["GradingPool"]):
    """Compares answers in another process, which starts with the first comparison. Any thread may
    ask. A context manager: leaving it ends the process.

    Args:
        seconds: for one verdict.
    """

    def __init__(self, seconds: float = GRADE_SECONDS) -> None:
        self.seconds = seconds
        context: Any = multiprocessing.get_context("spawn")  # a fork would copy locked locks
        self._pool = ProcessPool(1, initializer=begin, context=context)
        self._lock = threading.Lock()
        self._asked: set[ProcessFuture[tuple[bool, str]]] = set()
        self._closed = False

    def compare(self, gold: str, answer: str) -> tuple[bool, str]:
        """Whether they are the same, and why not.

        Answers whose comparison takes too long or ends its worker count as different.

        Raises:
            SetupError: no worker starts on this machine, or the pool is closed.
        """
        try:
            verdict = self._ask(gold, answer)
            # those asked before may each take as long, and a new worker
            return verdict.result(len(self._asked) * (START_SECONDS + self.seconds))
        except TimeoutError as error:
            if verdict.done():
                return False, f"no verdict within {self.seconds:g} s"
            raise SetupError("grading: no worker process gets ready", hint=_HINT) from error
        except ProcessExpired:
            return False, "the comparison ended its process"
        except (RuntimeError, CancelledError) as error:  # the pool is broken, or closed
            raise SetupError("grading: the worker processes have ended", hint=_HINT) from error

    def close(self) -> None:
        """Ends the workers, and with an error what waits for them. Idempotent."""
        with self._lock:
            self._closed = True
            for verdict in list(self._asked):
                verdict.cancel()  # type: ignore[no-untyped-call]
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()

    def _ask(self, gold: str, answer: str) -> ProcessFuture[tuple[bool, str]]:
        with self._lock:
            if self._closed:
                raise CancelledError
            # Workers inherit the mask: a Ctrl-C while they start is not theirs. The tracker comes
            # first, because its start unblocks the signal.
            resource_tracker.ensure_running()
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                verdict = self._pool.schedule(
                    compare_in_worker, [gold, answer], timeout=self.seconds
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._asked.add(verdict)
        verdict.add_done_callback(self._asked.discard)
        return verdict

    def __exit__(self, *_: object) -> None:
        self.close()


def begin() -> None:
    """Prepares a worker: makes Math-Verify import all that it needs, so that no verdict waits for
    that, and sets limits.
    """
    logging.disable(logging.CRITICAL)
    algebra.compare_expressions("2", "1+1")
    resource.setrlimit(resource.RLIMIT_AS, (WORKER_MEMORY, WORKER_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def compare_in_worker(gold: str, answer: str) -> tuple[bool, str]:
    """Whether Math-Verify finds them equal, and why not; answers that it cannot parse are not."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + ORPHANED, most))
    try:
        return algebra.compare_expressions(gold, answer)
    except Exception as error:  # noqa: BLE001 - it has many of its own, and all mean the same
        return False, f"{type(error).__name__}: {error}"[:200]
