"""Takes connections from a listening socket that several processes share: the process with the
fewest takes the next.

One socket for all, in place of one for each (``SO_REUSEPORT``): connections that wait in it belong
to no process yet, so none is lost when a process dies, and none waits for a process that is busy
while another is not.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

from lr_sglang.serve.logs import log
from lr_sglang.serve.processes.board import Board, Column

BEHIND_SECONDS = (
    0.002  # that a process waits for each connection that it has more than another process
)
LONGEST_SECONDS = 0.05
WANT_SECONDS = 1.0  # pause after accept() has failed


class Acceptor:
    """Accepts the connections of one process.

    Args:
        sock: a listening socket; it is made non-blocking.
        make: a protocol for a connection.
        most: connections that this process may have open.
    """

    def __init__(
        self, sock: socket.socket, make: Callable[[], Any], board: Board, most: int
    ) -> None:
        sock.setblocking(
            False
        )  # uvloop would do so; a blocking accept() waits where another process was quicker
        self._sock, self._make, self._board, self._most = sock, make, board, most
        self._opening: set[asyncio.Task[Any]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Accepts no more connections; the accepted ones stay."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._readable()
            if behind := self._own() - self._fewest(self._own()):
                await asyncio.sleep(min(LONGEST_SECONDS, BEHIND_SECONDS * behind))
            if (
                self._own() >= self._most > self._fewest(self._most)
            ):  # full, while another process is not
                await asyncio.sleep(LONGEST_SECONDS)
                continue
            try:
                connection, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                continue  # another process has taken it, or it is gone
            except (
                OSError
            ) as error:  # no file is left, or a fault of the network, which Linux reports here
                reason = errno.errorcode.get(error.errno or 0, "")
                log("no connection can be taken", logging.ERROR, reason=reason)
                await asyncio.sleep(WANT_SECONDS)
                continue
            connection.setblocking(False)
            task = loop.create_task(loop.connect_accepted_socket(self._make, connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _readable(self) -> None:
        """Returns when a client has connected."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._sock, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._sock)

    def _own(self) -> float:
        return self._board.column(Column.CONNECTIONS)[self._board.number] + len(self._opening)

    def _fewest(self, most: float) -> float:
        """The fewest connections of another process, at most ``most``."""
        return min([most, *self._board.others(Column.CONNECTIONS)])
