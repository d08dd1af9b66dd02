"""Keeping a fleet up: a server that ends is started again on its port, later each time that it ends soon."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from typing import Literal

from lr_sglang.config import Runtime
from lr_sglang.errors import Cancelled, LaunchError, LookaheadError
from lr_sglang.runtimes.launching.fleet import Fleet, gpus_of, same_gpu
from lr_sglang.runtimes.launching.ports import Reservation
from lr_sglang.runtimes.placement import assign

POLL = 0.5
FRACTION = "--mem-fraction-static"


@dataclass(frozen=True)
class Event:
    """What became of a role's server: it ended (``delay``: seconds until the next try), is back, or is given up.

    ``hint`` is what its log says can be done, or where the log is.
    """

    role: str
    what: Literal["ended", "back", "given up"]
    message: str
    delay: float = 0.0
    hint: str = ""


@dataclass(frozen=True)
class Patience:
    """How restarts are spaced: ``first`` seconds, then twice as long each time, at most ``longest``.

    A server that was up for ``steady`` seconds begins anew. More than ``restarts`` ends in a row, and it is given up.
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
        """Returns when ``ending`` is set; the fleet's servers are left to its ``stop``.

        Raises:
            LaunchError: the target is given up, without which nothing can be answered.
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
            with ExitStack() as port:  # kept from other servers of this user until the server is up again
                with suppress(LaunchError):  # it is taken: the server itself reports that, unless it is free by then
                    port.callback(Reservation(int(server.url.rpartition(":")[2]), role).release)
                while error is not None:
                    ends += 1
                    delay = self.patience.delay(ends)
                    if self.ending.is_set():
                        return
                    if ends > self.patience.restarts:
                        if role == "target":
                            raise error
                        return self._report(Event(role, "given up", error.message, hint=error.hint))
                    self._report(Event(role, "ended", error.message, delay, error.hint))
                    if self.ending.wait(delay):
                        return
                    error = self._restart(role)
            since = time.monotonic()
            self._report(Event(role, "back", f"ready again at {server.url}"))

    def _report(self, event: Event) -> None:
        with self._lock:
            if not self.ending.is_set():
                self._tell(event)

    def _restart(self, role: str) -> LookaheadError | None:
        """Starts a server again; returns why it is not ready, if it is not."""
        shares = any(self._shares(role, other) for other in self.fleet.servers if other != role)
        with self._gpus if shares else nullcontext():
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

    def _shares(self, one: str, other: str) -> bool:
        return same_gpu(self.fleet.deployment, one, other)

    def _argv(self, role: str, argv: Sequence[str]) -> Sequence[str]:
        """The command, with the memory fraction that stands for what it had: its neighbours are up now."""
        if FRACTION not in argv:
            return argv
        runtimes = self.fleet.deployment.runtimes
        up = [other for other in self.fleet.servers if other != role and self.fleet.servers[other].alive()]
        shares = [
            assign.again(fractions, role, up)
            for gpu in gpus_of(runtimes[role])
            if len(fractions := self._fractions(gpu, role, runtimes)) > 1
        ]
        if not shares:
            return argv
        at = argv.index(FRACTION) + 1
        return [*argv[:at], str(min(shares)), *argv[at + 1 :]]

    def _fractions(self, gpu: int, role: str, runtimes: dict[str, Runtime]) -> dict[str, float]:
        """Of the servers on one GPU, in the order in which they were started."""
        return {
            other: fraction
            for other in self.fleet.servers
            if (other == role or self._shares(role, other))
            and gpu in gpus_of(runtimes[other])
            and (fraction := runtimes[other].memory_fraction) is not None
        }
