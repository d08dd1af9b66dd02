"""The parent of an endpoint's processes: starts them, starts again what dies, and ends them. It
answers nothing itself.

uvicorn's own supervisor ignores a second signal while answers end, leaves its processes behind when
it is killed, and starts only uvicorn's own class of server.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import multiprocessing.forkserver
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from lr_sglang.errors import LaunchError, LookaheadError
from lr_sglang.runtimes.launching.keeper import Patience
from lr_sglang.serve.logs import log
from lr_sglang.serve.processes.board import Board
from lr_sglang.serve.processes.work import BOARD, END, LEAVE, Room, Work
from lr_sglang.sglang_api.light_import import leave_torch_out

PATIENCE = Patience(first=0.5, longest=30.0, steady=10.0)


def warm_up(lean: bool) -> None:
    """Starts the process that all others are forked from; it imports everything once."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["lr_sglang.serve.processes.preload" if lean else "lr_sglang.serve.processes.worker"]
    )
    multiprocessing.forkserver.ensure_running()


def _begin(work: Work, number: int, sock: socket.socket, parent: Connection) -> None:
    """Runs in a new process. The process that it was forked from may lack the imports of
    ``warm_up``.
    """
    if work.lean:
        leave_torch_out()
    from lr_sglang.serve.processes.worker import answer

    answer(work, number, sock, parent)


class Supervisor:
    """All processes of an endpoint.

    Args:
        sock: bound; all processes accept connections from it.
        ready: called, once, when all of them answer.
    """

    def __init__(
        self, work: Work, sock: socket.socket, ready: Callable[[Mapping[str, Room]], None]
    ) -> None:
        self._work, self._sock, self._ready = work, sock, ready
        self._there: dict[int, tuple[Connection, BaseProcess]] = {}
        self._starting = set(range(work.processes))  # they have not answered yet
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending, self._ends = asyncio.Event(), 0
        Board.make(work.folder / BOARD, work.processes)
        self._board = Board(work.folder / BOARD, 0, work.processes)

    def end(self) -> None:
        """Ends all processes as a signal does: the first call lets answers end, the second stops
        them, the third kills the processes; thread-safe.
        """
        if self._loop is None:
            self._ending.set()
        else:
            self._loop.call_soon_threadsafe(self._end)

    def run(self) -> None:
        """Runs until all have ended on request; raises the error of the first one that could not
        start.
        """
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        with self._signals():
            tasks = [
                asyncio.create_task(self._keep(number)) for number in range(self._work.processes)
            ]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self) -> None:
        self._ends += 1
        self._ending.set()
        for pipe, process in self._there.values():
            if self._ends > 2:  # a program or a verifier holds up its loop
                process.kill()
            with suppress(OSError):
                pipe.send(END)

    async def _keep(self, number: int) -> None:
        """Runs a process, and starts another in its place when it dies, until all are to end."""
        ends = 0
        while not self._ending.is_set():
            began = time.monotonic()
            status, error = await self._live(number)
            if self._ending.is_set():
                return
            if self._starting:
                raise error or LaunchError(
                    f"process {number} ended with status {status} before it answered"
                )
            ends = 1 if time.monotonic() - began >= PATIENCE.steady else ends + 1
            delay = PATIENCE.delay(ends - 1) if ends > 1 else 0.0
            about = {"error": error.message} if error else {}
            log(
                "process ended",
                logging.WARNING,
                process=number,
                status=status,
                again=delay,
                **about,
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._ending.wait()

    async def _live(self, number: int) -> tuple[int | None, LookaheadError | None]:
        """Runs one process to its end; returns its status and the error that it reported."""
        from prometheus_client.multiprocess import mark_process_dead

        loop, context, ended = (
            asyncio.get_running_loop(),
            multiprocessing.get_context("forkserver"),
            asyncio.Event(),
        )
        pipe, theirs = context.Pipe()
        given = (self._work, number, self._sock, theirs)
        process = context.Process(target=_begin, args=given, name=f"lr-process-{number}")
        try:
            process.start()
        except (OSError, EOFError) as failure:  # there is no memory or no file at present
            pipe.close()
            return None, LaunchError(f"process {number} cannot be started: {failure!r}")
        finally:
            theirs.close()
        error: LookaheadError | None = None

        def hear() -> None:
            nonlocal error
            try:
                while pipe.poll():
                    said = pipe.recv()
                    if isinstance(said, LookaheadError):
                        error = said
                    elif self._starting:
                        self._starting.discard(number)
                        if not self._starting:
                            self._ready(said)
            except (EOFError, OSError):
                loop.remove_reader(pipe.fileno())

        self._there[number] = pipe, process
        loop.add_reader(pipe.fileno(), hear)
        loop.add_reader(process.sentinel, ended.set)
        try:
            await ended.wait()
            hear()
        finally:
            loop.remove_reader(pipe.fileno())
            loop.remove_reader(process.sentinel)
            del self._there[number]
            with suppress(OSError):
                pipe.send(
                    LEAVE
                )  # it still runs if only the process that it was forked from has died
            pipe.close()
            process.kill()
            process.join()
            self._board.clear(number)
            mark_process_dead(number, str(self._work.folder))  # type: ignore[no-untyped-call]
        return process.exitcode, error

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        ends = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, lambda *_: self.end()) for number in ends}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
