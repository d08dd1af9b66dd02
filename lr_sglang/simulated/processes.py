"""Simulated runtimes in processes of their own, reached over HTTP as SGLang's servers are."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Self

import psutil  # type: ignore[import-untyped]  # SGLang brings it

from lr_sglang.config import ROLES
from lr_sglang.engine.client import Client
from lr_sglang.errors import LaunchError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.sglang_api.light_import import call_without_torch
from lr_sglang.simulated.serving import serve
from lr_sglang.simulated.simulation import Simulation
from lr_sglang.simulated.transport import simulated_roles

START_SECONDS = 120.0


class RuntimeProcesses:
    """The servers of one simulation, a process for each role, until the ``with`` block ends.

    Attributes:
        urls: by role.

    Raises:
        LaunchError: one of them does not start.
    """

    def __init__(self, simulation: Simulation) -> None:
        fresh = multiprocessing.get_context("spawn")
        self._processes, ends = [], []
        for role in ROLES:
            mine, theirs = fresh.Pipe()
            called = (__name__, _serve.__name__, simulation, role, theirs)
            process = fresh.Process(target=call_without_torch, args=called, daemon=True)
            process.start()
            self._processes.append(process)
            ends.append(mine)
        self.urls: dict[str, str] = {}
        for role, end in zip(ROLES, ends, strict=True):
            if not end.poll(START_SECONDS):
                raise LaunchError(f"the simulated runtime did not start in {START_SECONDS:g} s", role=role)
            self.urls |= end.recv()

    def cpu(self) -> float:
        """Seconds of CPU that the servers have used so far."""
        return sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in self._processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()


@contextmanager
def simulated_backends(simulation: Simulation, servers: RuntimeProcesses) -> Iterator[Mapping[str, RuntimeBackend]]:
    """Backends for the runtimes of these servers, by role."""
    roles = simulated_roles(simulation)
    for role, backend in roles.items():
        backend.transport = Client(servers.urls[role], role)
    try:
        yield roles
    finally:
        for backend in roles.values():
            backend.shutdown()


def _serve(simulation: Simulation, role: str, urls: Connection) -> None:
    serve(simulation, {role: 0}, ready=urls.send)
