"""Keeps a fleet up: starts a server that has ended again on its port, after a delay that grows if
it ends early.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from typing import Literal

from lr_sglang.errors import Cancelled, LaunchError, LookaheadError
from lr_sglang.runtimes.launching.fleet import Fleet, gpus_of, same_gpu
from lr_sglang.runtimes.launching.ports import Reservation
from lr_sglang.runtimes.placement import assign

POLL = 0.5
FRACTION = "--mem-fraction-static"


@dataclass(frozen=True)
class Event:
    """A role's server has ended (``delay``: seconds until the next try), is back, or is given up.

    ``hint`` is advice from its log, or the log's path.
    """

    role: str
    what: Literal["ended", "back", "given up"]
    message: str
    delay: float = 0.0
    hint: str = ""


@dataclass(frozen=True)
class Patience:
    """The delays of restarts: ``first`` seconds, then twice as long each time, at most ``longest``.

    After ``steady`` seconds up, a server starts anew with ``first``. After ``restarts`` ends in a
    row it is given up.
    """

    first: float = 1.0
    longest: float = 60.0
    steady: float = 120.0
    restarts: int = 8

    def delay(self, ends: int) -> float:
        """Seconds before the next try, after ``ends`` ends in a row."""
        return float(min(self.longest, self.first * 2 ** min(ends - 1, 30)))


class Keeper:
    """Watches the servers of a fleet, a thread for each, and starts again what ends.

    Args:
        tell: called once for each event, one at a time.
        timeout: seconds that a restarted server has until it must be ready.
    """

    def __init__(
        self,
        fleet: Fleet,
        tell: Callable[[Event], None],
        patience: Patience | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.fleet, self.timeout, self.patience = fleet, timeout, patience or Patience()
        self.ending = threading.Event()
        self._tell, self._lock, self._gpus = tell, threading.Lock(), threading.Lock()

    def watch(self) -> None:
        """Returns when ``ending`` is set, and leaves the servers running: the fleet's ``stop`` ends
        them.

        Raises:
            LaunchError: the target is given up; without it, nothing can be answered.
        """
        pool = ThreadPoolExecutor(max(1, len(self.fleet.servers)), "lr-keeper")
        try:
            kept = [pool.submit(self._keep, role) for role in self.fleet.servers]
            while not self.ending.wait(POLL):
                for one in kept:
                    if one.done():
                        one.result()
        finally:
            with self._lock:  # after it no server is started and no event reported
                self.ending.set()
            pool.shutdown(wait=False)

    def _keep(self, role: str) -> None:
        """Returns when ``ending`` is set, or the server is given up."""
        ends, since = 0, time.monotonic()
        while not self.ending.wait(POLL):
            server = self.fleet.servers[role]
            if server.alive():
                continue
            if time.monotonic() - since >= self.patience.steady:
                ends = 0
            error: LookaheadError | None = server.died()
            with (
                ExitStack() as port
            ):  # kept from other servers of this user until the server is up again
                with suppress(LaunchError):  # if it is taken, the server will report that
                    port.callback(Reservation(int(server.url.rpartition(":")[2]), role).release)
                while error is not None and not self.ending.is_set():
                    ends += 1
                    delay = self.patience.delay(ends)
                    if ends > self.patience.restarts:
                        if role == "target":
                            raise error
                        return self._report(Event(role, "given up", error.message, hint=error.hint))
                    self._report(Event(role, "ended", error.message, delay, error.hint))
                    error = None if self.ending.wait(delay) else self._restart(role)
            since = time.monotonic()
            self._report(Event(role, "back", f"ready again at {server.url}"))

    def _report(self, event: Event) -> None:
        with self._lock:
            if not self.ending.is_set():
                # a full disk, or a terminal that has gone (where rich exits), is no reason to stop
                # the servers
                with suppress(OSError, SystemExit):
                    self._tell(event)

    def _restart(self, role: str) -> LookaheadError | None:
        """Starts a server again; returns the error if it does not get ready."""
        with self._gpus if self._neighbours(role) else nullcontext():
            with self._lock:
                if self.ending.is_set():
                    return Cancelled("the servers are stopped", role=role)
                old = self.fleet.servers[role]
                server = self.fleet.servers[role] = old.again(self._argv(role, old.argv))
            try:
                server.start()
                server.wait_ready(self.timeout, cancelled=self.ending)
            except LookaheadError as error:
                server.stop()
                return error
        return None

    def _neighbours(self, role: str) -> list[str]:
        """Roles whose servers are on a GPU with this one."""
        return [
            other
            for other in self.fleet.servers
            if other != role and same_gpu(self.fleet.deployment, role, other)
        ]

    def _argv(self, role: str, argv: Sequence[str]) -> Sequence[str]:
        """The command, with a fraction that gives the same memory as before, although its
        neighbours are up now.
        """
        runtimes, neighbours = self.fleet.deployment.runtimes, self._neighbours(role)
        if FRACTION not in argv or not neighbours:
            return argv
        up = [other for other in neighbours if self.fleet.servers[other].alive()]
        shares = []
        for gpu in gpus_of(runtimes[role]):
            on_it = [
                it
                for it in self.fleet.servers
                if it in (role, *neighbours) and gpu in gpus_of(runtimes[it])
            ]
            given = {
                it: fraction
                for it in on_it
                if (fraction := runtimes[it].memory_fraction) is not None
            }
            if len(given) > 1:
                shares.append(assign.again(given, role, up))
        at = argv.index(FRACTION) + 1
        return [*argv[:at], str(min(shares)), *argv[at + 1 :]] if shares else argv
