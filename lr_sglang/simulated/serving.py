"""Simulated runtimes as servers, several in one process, each on a port of its own."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import uvicorn

from lr_sglang.errors import LaunchError
from lr_sglang.simulated.faults import Fault
from lr_sglang.simulated.model import Writer
from lr_sglang.simulated.runtime import SimulatedRuntime
from lr_sglang.simulated.server import SimulatedServer
from lr_sglang.simulated.simulation import Simulation


class _Server(uvicorn.Server):
    def __init__(self, runtime: SimulatedRuntime) -> None:
        app = SimulatedServer(runtime, self.die).app()
        super().__init__(
            uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=60)
        )
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are for the command, which has several servers."""
        yield

    def die(self) -> None:
        """As a crash: no request gets an answer any more."""
        self.should_exit = self.force_exit = True
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
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
        ports: by role; 0 is any that is free.
        faults: by role, ordered from the start.
        ready: called with the URLs by role, once all of them answer.

    Raises:
        LaunchError: a port is taken, or a server does not start.
    """
    sockets = {role: _listen(host, port, role) for role, port in ports.items()}
    stopped = asyncio.run(_serve(simulation, sockets, faults or {}, ready))
    if stopped is not None:
        signal.raise_signal(stopped)  # the command's own handler says how it ends


async def _serve(
    simulation: Simulation,
    sockets: Mapping[str, socket.socket],
    faults: Mapping[str, Sequence[Fault]],
    ready: Callable[[dict[str, str]], None],
) -> int | None:
    """Returns the signal that ended it; None where all runtimes have died."""
    writer, tasks, urls, servers = Writer(simulation.model), list[asyncio.Task[None]](), {}, []
    for role, sock in sockets.items():
        runtime = SimulatedRuntime(role, simulation, writer)
        for fault in faults.get(role, ()):
            runtime.faults.order(fault)
        server = _Server(runtime)
        servers.append(server)
        tasks.append(asyncio.ensure_future(server.serve(sockets=[sock])))
        host, port = sock.getsockname()[:2]
        urls[role] = f"http://{host}:{port}"
    for role, server, task in zip(sockets, servers, tasks, strict=True):
        await _up(role, server, task)
    serving, stopped = asyncio.gather(*tasks), list[int]()

    def stop(number: int) -> None:
        stopped.append(number)
        serving.cancel()

    with _signals(stop):
        ready(urls)
        try:
            await serving
        except asyncio.CancelledError:
            if not stopped:
                raise
    return stopped[0] if stopped else None


async def _up(role: str, server: _Server, task: asyncio.Task[None]) -> None:
    """Waits until a server answers, or has ended without; its task is not awaited elsewhere yet.

    Raises:
        LaunchError: it does not start.
    """
    up = asyncio.ensure_future(server.up.wait())
    await asyncio.wait((up, task), return_when=asyncio.FIRST_COMPLETED)
    if up.done():
        return
    up.cancel()
    try:
        await task
    except OSError as error:
        raise LaunchError(f"it cannot be served: {error.strerror or error}", role=role) from error
    raise LaunchError("its server ended while it was starting", role=role)


@contextmanager
def _signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Signals that have a handler are heard between two events: one that raises would do so within a request, where
    the server takes it for the request's own error and goes on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in before.items() if callable(handler)}
    for number in before:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _listen(host: str, port: int, role: str) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Its connections have it too. asyncio sets it on its own sockets only, and a reply in two parts would take 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.bind((host, port))
        sock.listen()  # only this fails if another process has the port: two may be bound to one
    except OSError as error:
        sock.close()
        raise LaunchError(
            f"cannot listen on {host}:{port}: {error.strerror}", role=role, hint="give another --port"
        ) from error
    return sock
