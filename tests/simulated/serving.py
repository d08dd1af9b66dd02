"""Simulated runtimes as HTTP servers: all in one process, each on its own port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any

import uvicorn

from tests.simulated.model import Simulation, Writer
from tests.simulated.runtime import SimulatedRuntime
from tests.simulated.server import SimulatedServer

HOST = "127.0.0.1"


class _Server(uvicorn.Server):
    """Serves all roles; the port of a request decides the role.

    Args:
        apps: by port.
        ready: called when all roles can answer.
    """

    def __init__(self, apps: Mapping[int, Any], ready: Callable[[], None]) -> None:
        self._apps, self._ready = apps, ready
        config = uvicorn.Config(
            self._route, interface="asgi3", log_level="warning", access_log=False, lifespan="off"
        )
        config.timeout_keep_alive = 60
        super().__init__(config)

    async def _route(self, scope: Any, receive: Any, send: Any) -> None:
        await self._apps[scope["server"][1]](scope, receive, send)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes all connections without waiting for requests, which may hang."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)


def serve(
    simulation: Simulation, ports: Mapping[str, int], ready: Callable[[dict[str, str]], None]
) -> None:
    """Serves on 127.0.0.1 until it is interrupted.

    Args:
        ports: by role; 0 for any free port.
        ready: called with the URLs by role, when all roles can answer.
    """
    sockets = {role: listen(port) for role, port in ports.items()}
    taken = {role: sock.getsockname()[1] for role, sock in sockets.items()}
    writer = Writer(simulation.model)
    apps = {
        port: SimulatedServer(SimulatedRuntime(role, simulation, writer)).app()
        for role, port in taken.items()
    }
    urls = {role: f"http://{HOST}:{port}" for role, port in taken.items()}
    asyncio.run(_Server(apps, lambda: ready(urls)).serve(list(sockets.values())))


def listen(port: int = 0) -> socket.socket:
    """A socket that listens on this machine."""
    sock = socket.create_server((HOST, port))
    # Connections inherit it. asyncio sets it on its own sockets only; without it, a reply in two
    # parts takes 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
