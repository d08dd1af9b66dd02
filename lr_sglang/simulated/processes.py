"""Simulated runtimes in processes of their own, reached over HTTP as SGLang's servers are."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

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


@contextmanager
def runtime_processes(simulation: Simulation) -> Iterator[tuple[Mapping[str, RuntimeBackend], Callable[[], float]]]:
    """A server for each role, in a process of its own until the ``with`` block ends.

    Returns:
        Backends by role, and what gives the seconds of CPU that the servers have used so far.

    Raises:
        LaunchError: one of them does not start.
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
                raise LaunchError(f"the simulated runtime did not start in {START_SECONDS:g} s", role=role)
            roles[role].transport = Client(end.recv()[role], role)
            stack.callback(roles[role].shutdown)
        yield roles, lambda: sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in processes)


def _serve(simulation: Simulation, role: str, urls: Connection) -> None:
    serve(simulation, {role: 0}, ready=urls.send)
