"""Worker processes for Math-Verify: each verdict has a timeout, after which its worker
is replaced.
"""

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
# The module path is passed on, because it may depend on how this interpreter was started.
_CODE = (
    "import sys; sys.path[:] = {path!r}; from lr_sglang.grading.worker import main; main({pipe})"
)


class Pool:
    """Compares answers in other processes. Any thread may ask. A context manager: leaving it ends
    the processes.

    Args:
        size: how many processes at most; each is started when it is first needed.
        seconds: for one verdict.
    """

    def __init__(self, size: int = 1, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._lock, self._closed = threading.Lock(), False
        self._workers: list[_Worker | None] = [None] * size
        self._free: queue.LifoQueue[int] = queue.LifoQueue()  # places in the list
        for place in reversed(range(size)):
            self._free.put(place)

    def compare(self, gold: str, answer: str) -> tuple[bool, str]:
        """Whether they are the same, and why not.

        Answers whose comparison takes too long or ends its worker count as different.

        Raises:
            SetupError: no worker starts on this machine.
        """
        place, reply = self._free.get(), None
        try:
            worker = self._worker(place)
            reply = worker.ask([gold, answer], self.seconds)
            late = worker.alive()
        finally:
            if reply is None:
                self._put(place, None)
            self._free.put(place)
        if reply is None:
            return (
                False,
                f"no verdict within {self.seconds:g} s"
                if late
                else "the comparison ended its process",
            )
        return bool(reply["same"]), str(reply["why"])

    def processes(self) -> list[int]:
        """The pids of the running workers."""
        with self._lock:
            return [
                worker.process.pid
                for worker in self._workers
                if worker is not None and worker.alive()
            ]

    def close(self) -> None:
        """Ends the workers. Idempotent."""
        self._closed = True
        for place in range(len(self._workers)):
            self._put(place, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _worker(self, place: int) -> _Worker:
        worker = self._workers[place]
        if worker is not None and worker.alive():
            return worker
        self._put(place, worker := _Worker())
        if self._closed:
            raise SetupError("grading: the pool is closed")
        if worker.read(START_SECONDS) != READY:
            raise SetupError(
                "grading: no worker process starts",
                hint=f"try: {sys.executable} -c 'import math_verify'",
            )
        return worker

    def _put(self, place: int, worker: _Worker | None) -> None:
        """Sets the worker of a place, and ends the previous one."""
        with self._lock:
            before, self._workers[place] = self._workers[place], worker
        if before is not None:
            before.kill()


class _Worker:
    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        code = _CODE.format(path=sys.path, pipe=theirs.fileno())
        nothing = subprocess.DEVNULL
        streams: dict[str, Any] = {"stdin": nothing, "stdout": nothing, "stderr": nothing}
        with theirs:
            # A session of its own, so that Ctrl-C reaches only us, and we end the workers.
            streams |= {"pass_fds": [theirs.fileno()], "start_new_session": True}
            self.process = subprocess.Popen([sys.executable, "-c", code], **streams)

    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, question: Any, seconds: float) -> Any:
        """The reply; None if there is none in time, or the worker has ended."""
        with suppress(OSError):
            self._pipe.send_bytes(json.dumps(question).encode())
        return self.read(seconds)

    def read(self, seconds: float) -> Any:
        try:
            return json.loads(self._pipe.recv_bytes()) if self._pipe.poll(seconds) else None
        except (EOFError, OSError):
            self.process.wait()
            return None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._pipe.close()
