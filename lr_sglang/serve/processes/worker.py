"""One of several processes of an endpoint: it answers until its parent ends it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp  # noqa: F401 - before this process is forked from the one that has imported everything
from fastapi import FastAPI

from lr_sglang.errors import LookaheadError
from lr_sglang.runtimes.connect import connected
from lr_sglang.serve.app import create_app
from lr_sglang.serve.logs import set_up
from lr_sglang.serve.metrics import Metrics, count_together
from lr_sglang.serve.processes.acceptor import Acceptor
from lr_sglang.serve.processes.board import Board
from lr_sglang.serve.processes.work import BOARD, END, Room, Work
from lr_sglang.serve.server import EndpointServer
from lr_sglang.serve.settings import Service


class WorkerServer(EndpointServer):
    """Takes connections from a socket that it shares, and no signals.

    Args:
        parent: gets the properties of the runtimes once connections are accepted.
    """

    def __init__(
        self, app: FastAPI, service: Service, sock: socket.socket, parent: Connection
    ) -> None:
        super().__init__(app, service, self._begin)
        self._sock, self._parent = sock, parent
        self._acceptor = Acceptor(sock, self._protocol, app.state.board, self.connections.most)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._acceptor.stop()
        await super().shutdown([])

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ignores signals: a terminal sends them to all processes, and the parent passes on its
        own.
        """
        yield

    def _begin(self) -> None:
        self._sock.listen(self.config.backlog)
        self._acceptor.start()
        roles = self._engine.roles.items()
        self._parent.send(
            {
                role: Room(one.max_running_requests, one.kv_tokens, one.simulated)
                for role, one in roles
            }
        )

    def _protocol(self) -> object:
        return self.connections.protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


def answer(work: Work, number: int, sock: socket.socket, parent: Connection) -> None:
    """Runs one process of the endpoint."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    set_up(work.log_level, process=number)
    board = Board(work.folder / BOARD, number, work.processes)
    try:
        count_together(work.folder, number)
        with connected(work.fleet) as roles:
            app = create_app(roles, work.service, work.keys, Metrics(work.folder), board)
            server = WorkerServer(app, work.service, sock, parent)
            # A thread notices the death of the parent even while the event loop is blocked.
            threading.Thread(
                target=_heed, args=(parent, server, work.folder), name="lr-parent", daemon=True
            ).start()
            server.run()
    except LookaheadError as error:
        parent.send(error)


def _heed(parent: Connection, server: EndpointServer, folder: Path) -> None:
    """Handles each END of the parent as a signal; exits at once at LEAVE, or when the parent has
    died.
    """
    try:
        while parent.recv() == END:
            server.end()
    except (EOFError, OSError):
        shutil.rmtree(folder, ignore_errors=True)  # the parent cannot do it any more
    os._exit(1)
