"""Simulated runtimes as HTTP servers: all in one process, each on its own port, or each in its own
process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import psutil  # type: ignore[import-untyped]  # SGLang brings it
import uvicorn

from lr_sglang.config import ROLES
from lr_sglang.engine.client import Client
from lr_sglang.errors import LaunchError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.sglang_api.light_import import call_without_torch
from lr_sglang.simulated.faults import Fault
from lr_sglang.simulated.model import Writer
from lr_sglang.simulated.runtime import SimulatedRuntime
from lr_sglang.simulated.server import SimulatedServer
from lr_sglang.simulated.simulation import Simulation
from lr_sglang.simulated.transport import simulated_roles

START_SECONDS = 120.0  # maximum time for a server process to start


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

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """On a signal, stops the server first; then raises the signal again for the command's own
        handler.

        If that handler raised an exception during a request, the server would treat it as the
        request's error.
        """
        ends = [
            n
            for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if callable(signal.getsignal(n))
        ]
        before = {number: signal.signal(number, self.handle_exit) for number in ends}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        for captured in self._captured_signals[:1]:
            signal.raise_signal(captured)

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
    simulation: Simulation,
    ports: Mapping[str, int],
    host: str = "127.0.0.1",
    faults: Mapping[str, Sequence[Fault]] | None = None,
    ready: Callable[[dict[str, str]], None] = lambda urls: None,
) -> None:
    """Serves until it is interrupted, or until every runtime has died.

    Args:
        ports: by role; 0 for any free port.
        faults: by role, active from the start.
        ready: called with the URLs by role, when all roles can answer.

    Raises:
        LaunchError: a port is taken.
    """
    sockets = {role: _listen(host, port, role) for role, port in ports.items()}
    names = {role: sock.getsockname()[:2] for role, sock in sockets.items()}
    server = _Server(
        lambda: ready({role: f"http://{address}:{port}" for role, (address, port) in names.items()})
    )
    writer = Writer(simulation.model)
    for role, (_, port) in names.items():
        runtime = SimulatedRuntime(role, simulation, writer)
        for fault in (faults or {}).get(role, ()):
            runtime.faults.order(fault)
        server.apps[port] = SimulatedServer(runtime, partial(server.die, port)).app()
    asyncio.run(server.serve(list(sockets.values())))


def _listen(host: str, port: int, role: str) -> socket.socket:
    try:
        sock = socket.create_server((host, port))
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise LaunchError(
            f"cannot listen on {host}:{port}: {why}", role=role, hint="give another --port"
        ) from error
    # Connections inherit it. asyncio sets it on its own sockets only; without it, a reply in two
    # parts takes 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@contextmanager
def runtime_processes(
    simulation: Simulation,
) -> Iterator[tuple[Mapping[str, RuntimeBackend], Callable[[], float]]]:
    """Runs a server process for each role until the ``with`` block ends.

    Returns:
        Backends by role, and a function that returns the CPU seconds of the servers so far.

    Raises:
        LaunchError: a server does not start.
    """
    fresh, roles = multiprocessing.get_context("spawn"), simulated_roles(simulation)
    processes, ends = [], []
    with ExitStack() as stack:
        for role in ROLES:
            mine, theirs = fresh.Pipe()
            called = (__name__, _serve.__name__, simulation, role, theirs)
            process = fresh.Process(target=call_without_torch, args=called, daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
            processes.append(process)
            ends.append(mine)
        for role, end in zip(ROLES, ends, strict=True):
            if not end.poll(START_SECONDS):
                raise LaunchError(
                    f"the simulated runtime did not start in {START_SECONDS:g} s", role=role
                )
            roles[role].transport = Client(end.recv()[role], role)
            stack.callback(roles[role].shutdown)
        yield (
            roles,
            lambda: sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in processes),
        )


def _serve(simulation: Simulation, role: str, urls: Connection) -> None:
    serve(simulation, {role: 0}, ready=urls.send)
