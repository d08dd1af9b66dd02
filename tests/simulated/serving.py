"""Simulated runtimes as HTTP servers: all in one process, each on its own port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any

import uvicorn

from tests.simulated.model import Writer
from tests.simulated.runtime import SimulatedRuntime
from tests.simulated.server import SimulatedServer
from tests.simulated.simulation import Simulation

HOST = "127.0.0.1"


class _Server(uvicorn.Server):
    """Serves all roles; the port of a request decides the role.

    Args:
        ready: called when all roles can answer.
    """

    def __init__(self, ready: Callable[[], None]) -> None:
        config = uvicorn.Config(
            self._route, interface="asgi3", log_level="warning", access_log=False, lifespan="off"
        )
        config.timeout_keep_alive = 60
        super().__init__(config)
        self.apps: dict[int, Any] = {}  # by port
        self._ready = ready

    async def _route(self, scope: Any, receive: Any, send: Any) -> None:
        await self.apps[scope["server"][1]](scope, receive, send)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes all connections without waiting for requests, which may hang."""
        self._hang_up(set(self.apps))
        await super().shutdown(sockets)

    def die(self, port: int) -> None:
        """Simulates the crash of a role: closes its port and its connections."""
        del self.apps[port]
        for server in self.servers:
            if any(sock.getsockname()[1] == port for sock in server.sockets):
                server.close()
        self._hang_up({port})
        self.should_exit = self.should_exit or not self.apps

    def _hang_up(self, ports: Container[int]) -> None:
        for connection in list(self.server_state.connections):
            if connection.transport.get_extra_info("sockname")[1] in ports:
                connection.transport.abort()


def serve(
    simulation: Simulation, ports: Mapping[str, int], ready: Callable[[dict[str, str]], None]
) -> None:
    """Serves on 127.0.0.1 until it is interrupted, or until every runtime has died.

    Args:
        ports: by role; 0 for any free port.
        ready: called with the URLs by role, when all roles can answer.
    """
    sockets = {role: listen(port) for role, port in ports.items()}
    taken = {role: sock.getsockname()[1] for role, sock in sockets.items()}
    server = _Server(lambda: ready({role: f"http://{HOST}:{n}" for role, n in taken.items()}))
    writer = Writer(simulation.model)
    for role, port in taken.items():
        runtime = SimulatedRuntime(role, simulation, writer)
        server.apps[port] = SimulatedServer(runtime, partial(server.die, port)).app()
    asyncio.run(server.serve(list(sockets.values())))


def listen(port: int = 0) -> socket.socket:
    """A socket that listens on this machine."""
    sock = socket.create_server((HOST, port))
    # Connections inherit it. asyncio sets it on its own sockets only; without it, a reply in two
    # parts takes 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
