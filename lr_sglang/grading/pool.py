"""Worker processes for Math-Verify: each verdict has a time, and a worker that takes longer is replaced."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any, Self

from lr_sglang.errors import SetupError
from lr_sglang.grading.worker import READY

SECONDS = 15.0  # for a verdict
START_SECONDS = 120.0  # for a worker to import what it needs, on a busy machine
# The interpreter's path is passed on, as this one may have been started from anywhere.
_CODE = "import sys; sys.path[:] = {path!r}; from lr_sglang.grading.worker import main; main({pipe})"


class Pool:
    """Compares answers in other processes. Any thread may ask. A context manager: leaving it ends the processes.

    Args:
        size: how many processes at most; each is started when it is first needed.
        seconds: for one verdict.
    """

    def __init__(self, size: int = 1, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._places: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._places.put(None)
        self._lock = threading.Lock()
        self._all: set[_Worker] = set()
        self._closed = False

    def compare(self, gold: str, answer: str) -> tuple[bool, str]:
        """Whether they are the same, and why not.

        A comparison that takes too long, or ends its worker, is no agreement.

        Raises:
            SetupError: no worker starts on this machine.
        """
        worker = self._places.get()
        try:
            if worker is not None and not worker.alive():
                self._drop(worker)
                worker = None
            worker = worker or self._start()
            reply = worker.ask([gold, answer], self.seconds)
        except BaseException:
            self._drop(worker)
            worker = None
            raise
        else:
            if reply is None:
                late = worker.alive()
                self._drop(worker)
                worker = None
                return False, f"no verdict within {self.seconds:g} s" if late else "the comparison ended its process"
        finally:
            self._places.put(worker)
        return bool(reply["same"]), str(reply["why"])

    def close(self) -> None:
        """Ends the workers. Idempotent."""
        with self._lock:
            self._closed = True
            workers, self._all = self._all, set()
        for worker in workers:
            worker.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> _Worker:
        worker = _Worker()
        with self._lock:
            self._all.add(worker)
            closed = self._closed
        if closed:
            self._drop(worker)
            raise SetupError("grading: the pool is closed")
        if worker.read(START_SECONDS) != READY:
            self._drop(worker)
            raise SetupError("grading: no worker process starts", hint=f"try: {sys.executable} -c 'import math_verify'")
        return worker

    def _drop(self, worker: _Worker | None) -> None:
        if worker is not None:
            with self._lock:
                self._all.discard(worker)
            worker.kill()


class _Worker:
    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        code = _CODE.format(path=sys.path, pipe=theirs.fileno())
        with theirs:
            # A session of its own: Ctrl-C is for us, and we end the workers.
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: Any, seconds: float) -> Any:
        """The reply; None where there is none in time, or ever."""
        with suppress(OSError):
            self._pipe.send_bytes(json.dumps(question).encode())
        return self.read(seconds)

    def read(self, seconds: float) -> Any:
        try:
            return json.loads(self._pipe.recv_bytes()) if self._pipe.poll(seconds) else None
        except (EOFError, OSError):
            self._process.wait()
            return None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._pipe.close()
