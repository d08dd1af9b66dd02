"""The parent of an endpoint's processes: starts them, starts again what dies, and ends them. It answers nothing itself.

uvicorn's own supervisor hears no second signal while answers end, leaves its processes behind when it is killed, and
makes servers of uvicorn's kind only.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.forkserver
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

from lr_sglang.errors import LaunchError, LookaheadError
from lr_sglang.runtimes import Fleet
from lr_sglang.runtimes.launching.keeper import Patience
from lr_sglang.serve.keys import Keys
from lr_sglang.serve.logs import log
from lr_sglang.serve.processes.board import Board
from lr_sglang.serve.settings import Service
from lr_sglang.sglang_api.light_import import leave_torch_out

BOARD = "board"
END, LEAVE = "end", "leave"  # messages to a process: end as by a signal, or at once
LOOK_SECONDS = 0.1
STEADY_SECONDS = 10.0  # after which one that dies is started again at once
PATIENCE = Patience(first=0.5, longest=30.0, steady=STEADY_SECONDS)


@dataclass(frozen=True)
class Room:
    """What a process has found of a role's runtime: as of ``RuntimeBackend``."""

    max_running_requests: int | None
    kv_tokens: int | None
    simulated: bool


@dataclass(frozen=True)
class Work:
    """What each process is given.

    Attributes:
        fleet: addresses only; the servers are the parent's.
        folder: of what they share: the board, and what they count.
        lean: see ``lean``.
    """

    service: Service
    keys: Keys
    fleet: Fleet
    folder: Path
    processes: int
    log_level: str
    lean: bool


def warm_up(lean: bool) -> None:
    """Begins to import, once for all processes, in the process that they are forked from."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["lr_sglang.serve.processes.preload" if lean else "lr_sglang.serve.processes.worker"]
    )
    multiprocessing.forkserver.ensure_running()


def _begin(work: Work, number: int, sock: socket.socket, parent: Connection) -> None:
    """In a new process, which need not have been forked from one that has imported everything."""
    if work.lean:
        leave_torch_out()
    from lr_sglang.serve.processes.worker import answer

    answer(work, number, sock, parent)


@dataclass
class _Life:
    """One process over time. ``due``: when it is to be started; ``told``: how many times it was sent ``END``."""

    process: Any = None
    pipe: Connection | None = None
    since: float = 0.0
    due: float = 0.0
    ends: int = 0
    told: int = 0
    ready: bool = False
    over: bool = False
    error: LookaheadError | None = None

    def news(self) -> list[Any]:
        """What can be waited for: that it ends, or says something."""
        return [] if self.process is None else [self.process.sentinel, self.pipe]


class Supervisor:
    """All processes of an endpoint.

    Args:
        sock: that they take connections from; it is bound.
        ready: called, once, when all of them answer.
    """

    def __init__(self, work: Work, sock: socket.socket, ready: Callable[[Mapping[str, Room]], None]) -> None:
        self._work, self._sock, self._ready = work, sock, ready
        self._ends, self._rooms, self._up = 0, dict[str, Room](), False
        self._lives = [_Life() for _ in range(work.processes)]
        Board.make(work.folder / BOARD, work.processes)
        self._board = Board(work.folder / BOARD, 0, work.processes)

    def end(self) -> None:
        """As a signal does: answers may end, and the second time they may not; from any thread."""
        self._ends += 1

    def run(self) -> None:
        """Returns when all have ended, because they were to.

        Raises:
            LookaheadError: what the first one met that could not begin.
        """
        try:
            with self._signals():
                while not all(life.over for life in self._lives):
                    for number, life in enumerate(self._lives):
                        self._look(number, life)
                    wait([part for life in self._lives for part in life.news()], LOOK_SECONDS)
        finally:
            for life in self._lives:
                if life.process is not None:
                    life.process.kill()
                    life.process.join()

    def _look(self, number: int, life: _Life) -> None:
        if life.process is None:
            life.over = self._ends > 0
            if not life.over and time.monotonic() >= life.due:
                self._start(number, life)
            return
        assert life.pipe is not None
        has_ended = life.process.exitcode is not None
        with suppress(EOFError, OSError):
            while life.pipe.poll():
                self._hear(life, life.pipe.recv())
        if has_ended:
            self._ended(number, life)
            return
        with suppress(OSError):
            while life.told < self._ends:
                life.pipe.send(END)
                life.told += 1

    def _start(self, number: int, life: _Life) -> None:
        context = multiprocessing.get_context("forkserver")
        life.pipe, theirs = context.Pipe()
        given = (self._work, number, self._sock, theirs)
        life.process = context.Process(target=_begin, args=given, name=f"lr-process-{number}")
        life.process.start()
        theirs.close()
        life.since, life.ready, life.told = time.monotonic(), False, 0

    def _hear(self, life: _Life, said: Mapping[str, Room] | LookaheadError) -> None:
        if isinstance(said, LookaheadError):
            life.error = said
            return
        life.ready = True
        self._rooms = dict(said)
        if not self._up and all(one.ready for one in self._lives):
            self._up = True
            self._ready(self._rooms)

    def _ended(self, number: int, life: _Life) -> None:
        from prometheus_client.multiprocess import mark_process_dead

        assert life.pipe is not None
        status, error = life.process.exitcode, life.error
        with suppress(OSError):
            life.pipe.send(LEAVE)  # it lives on where only the process has died that it was forked from
        life.pipe.close()
        life.process.close()
        life.process = life.pipe = life.error = None
        self._board.clear(number)
        mark_process_dead(number, str(self._work.folder))  # type: ignore[no-untyped-call]
        if self._ends:
            return
        if not self._up:
            raise error or LaunchError(f"process {number} ended with status {status} before it answered")
        life.ends = 1 if time.monotonic() - life.since >= PATIENCE.steady else life.ends + 1
        delay = PATIENCE.delay(life.ends - 1) if life.ends > 1 else 0.0
        life.due = time.monotonic() + delay
        about = {"error": error.message} if error else {}
        log("process ended", logging.WARNING, process=number, status=status, again=delay, **about)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def heard(number: int, frame: FrameType | None) -> None:
            self.end()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
