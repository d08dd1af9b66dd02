"""Takes connections from a listening socket that several processes share: the process with the fewest takes the next.

One socket for all, in place of one for each (``SO_REUSEPORT``): connections that wait in it belong to no process
yet, so none is lost when a process dies, and none waits for a process that is busy while another is not.
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

BEHIND_SECONDS = 0.002  # that a process lets others go first, for each connection that it has more than they
LONGEST_SECONDS = 0.05
WANT_SECONDS = 1.0  # after the system has given no file for a connection


class Acceptor:
    """One process's.

    Args:
        sock: that listens and does not block.
        make: a protocol for a connection.
        most: connections that this process may have open.
    """

    def __init__(self, sock: socket.socket, make: Callable[[], Any], board: Board, most: int) -> None:
        self._sock, self._make, self._board, self._most = sock, make, board, most
        self._opening: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._sock, self._look)

    def stop(self) -> None:
        """Takes no more; those that it has taken stay."""
        asyncio.get_running_loop().remove_reader(self._sock)
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if behind := self._behind():
            self._pause(min(LONGEST_SECONDS, BEHIND_SECONDS * behind))
        else:
            self._accept()

    def _behind(self) -> float:
        """Connections that this process has more than the one that has the fewest."""
        return max(0.0, self._own() - min(self._board.others(Column.CONNECTIONS), default=self._own()))

    def _own(self) -> float:
        return self._board.column(Column.CONNECTIONS)[self._board.number] + len(self._opening)

    def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock)
        self._timer = loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        """Takes the connection unless another process has; one that is full leaves it to those that are not."""
        full = self._own() >= self._most
        if full and min(self._board.others(Column.CONNECTIONS), default=self._most) < self._most:
            self._pause(LONGEST_SECONDS)
            return
        self.start()
        self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process has taken it, or it is gone
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                raise
            log("no connection can be taken", logging.ERROR, reason=errno.errorcode[error.errno])
            self._pause(WANT_SECONDS)
            return
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(self._make, connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
