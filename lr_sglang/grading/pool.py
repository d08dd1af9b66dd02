"""A worker process for Math-Verify: each verdict has limits of time and memory, at which the worker
is killed and replaced.

Math-Verify limits its time by SIGALRM, which counts the time of the others on a busy machine too,
and cannot interrupt the computation of a huge power. A worker shares nothing but the pipe to it, so
that its death, at whatever moment, is the end of that pipe and no more.
"""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import resource
import signal
import threading
from contextlib import AbstractContextManager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import cast

from lr_sglang.errors import SetupError
from lr_sglang.grading import algebra

GRADE_SECONDS = 10.0  # of processor time, for a verdict
BUSY = 20  # times as long a verdict may take on a machine on which others compute
START_SECONDS = 120.0  # for a worker to get ready
# A worker may die of something else than its answer, such as another program's use of the memory.
ATTEMPTS = 2
WORKER_MEMORY = 4 << 30  # bytes of a worker's address space
_HINT = "try: python -c 'import math_verify'"


class GradingPool(AbstractContextManager["GradingPool"]):
    """Compares answers in another process, which starts with the first comparison. Any thread may
    ask; one comparison runs at a time. A context manager: leaving it ends the process.

    Args:
        seconds: of processor time, for one verdict.
    """

    def __init__(self, seconds: float = GRADE_SECONDS) -> None:
        self.seconds = seconds
        self._turn = threading.Lock()  # held for one comparison
        self._worker: _Worker | None = None
        self._closed = False

    def compare(self, gold: str, answer: str) -> tuple[bool, str]:
        """Whether they are the same, and why not.

        Answers whose comparison takes too long, or ends two workers, count as different.

        Raises:
            SetupError: no worker starts on this machine, or the pool is closed.
        """
        with self._turn:
            for _ in range(ATTEMPTS):
                with contextlib.suppress(EOFError, OSError):  # it has died, or does not start
                    return self._living_worker().compare(gold, answer, self.seconds)
            if self._worker is None or not self._worker.ready:
                raise SetupError("grading: no worker process starts", hint=_HINT)
        return False, "the comparison ended its process"

    def close(self) -> None:
        """Ends the worker, and with an error what waits for it. Idempotent."""
        self._closed = True
        if self._worker is not None:
            self._worker.process.kill()  # ends the comparison that has the turn
        with self._turn:
            if self._worker is not None:
                self._worker.end()

    def _living_worker(self) -> _Worker:
        if self._worker is None or not self._worker.process.is_alive():
            self._worker = _Worker()
        if self._closed:
            self._worker.end()
            raise SetupError("grading: the worker process has ended", hint=_HINT)
        return self._worker

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker:
    """A process that compares, and our end of the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy locked locks
        self.ready = False
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=[theirs], daemon=True)
        # It inherits the mask: a Ctrl-C while it starts is not its own. The tracker comes first,
        # because its start unblocks the signal.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def compare(self, gold: str, answer: str, seconds: float) -> tuple[bool, str]:
        """As ``GradingPool.compare``. EOFError or OSError: it has died."""
        try:
            if not self.ready:
                if not self._pipe.poll(START_SECONDS):
                    raise SetupError("grading: no worker process gets ready", hint=_HINT)
                self.ready = self._pipe.recv()
            self._pipe.send((gold, answer, seconds))
            if self._pipe.poll(seconds * BUSY):
                return cast("tuple[bool, str]", self._pipe.recv())
            self.end()
        except (EOFError, OSError):
            self.end()
            if self.process.exitcode != -signal.SIGXCPU:
                raise
        return False, f"no verdict within {seconds:g} s of processor time"

    def end(self) -> None:
        """Kills the process. Idempotent."""
        self.process.kill()
        self.process.join()
        self._pipe.close()


def work(pipe: Connection) -> None:
    """Runs a worker: makes Math-Verify import all that it needs, so that no verdict waits for that,
    sets limits, says that it is ready, and compares until the pool has gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    with contextlib.suppress(Exception):  # its end is enough for the pool
        algebra.compare_expressions("2", "1+1")
        resource.setrlimit(resource.RLIMIT_AS, (WORKER_MEMORY, WORKER_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        pipe.send(True)
        while True:
            pipe.send(compare_in_worker(*pipe.recv()))


def compare_in_worker(gold: str, answer: str, seconds: float) -> tuple[bool, str]:
    """Whether Math-Verify finds them equal, and why not; answers that it cannot parse are not."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    limit = math.ceil(used.ru_utime + used.ru_stime + seconds)  # at it SIGXCPU ends the process
    resource.setrlimit(resource.RLIMIT_CPU, (limit, most))
    try:
        return algebra.compare_expressions(gold, answer)
    except Exception as error:  # noqa: BLE001 - it has many of its own, and all mean the same
        return False, f"{type(error).__name__}: {error}"[:200]
