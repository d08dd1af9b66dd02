"""Keeping a fleet up: a server that ends is started again on its port, later each time that it ends soon."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lr_sglang.config import Runtime
from lr_sglang.errors import Cancelled, LaunchError, LookaheadError
from lr_sglang.runtimes.launching.fleet import Fleet, gpus_of, same_gpu
from lr_sglang.runtimes.launching.ports import Reservation
from lr_sglang.runtimes.launching.server import Server
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


@dataclass
class _Life:
    """One role's server over time. ``due``: when to start it again; ``rising``: the thread that does."""

    since: float
    ends: int = 0
    due: float | None = None
    rising: threading.Thread | None = None
    error: LookaheadError | None = None
    port: Reservation | None = None
    given_up: bool = False

    def release(self) -> None:
        if self.port is not None:
            self.port.release()
            self.port = None


class Keeper:
    """Watches the servers of a fleet and starts again what ends.

    Args:
        tell: called, in the thread of ``watch``, once for each event.
        timeout: seconds that a restarted server has until it must be ready.
    """

    def __init__(
        self,
        fleet: Fleet,
        tell: Callable[[Event], None],
        patience: Patience | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.fleet, self.tell, self.timeout = fleet, tell, timeout
        self.patience = patience or Patience()
        self.ending = threading.Event()
        self._lives = {role: _Life(time.monotonic()) for role in fleet.servers}

    def watch(self, poll: float = POLL) -> None:
        """Returns when ``ending`` is set; the fleet's servers are left to its ``stop``.

        Raises:
            LaunchError: the target is given up, without which nothing can be answered.
        """
        try:
            while not self.ending.wait(poll):
                for role, life in self._lives.items():
                    self._look(role, life)
        finally:
            self.ending.set()
            for life in self._lives.values():
                life.release()

    def _look(self, role: str, life: _Life) -> None:
        now = time.monotonic()
        if life.given_up:
            return
        if life.rising is not None:
            if not life.rising.is_alive():
                self._risen(role, life)
        elif life.due is not None:
            neighbours = [other for other in self._lives if other != role and self._shares(role, other)]
            if now >= life.due and not any(self._lives[other].rising for other in neighbours):
                self._start(role, life)
        elif not self.fleet.servers[role].alive():
            if now - life.since >= self.patience.steady:
                life.ends = 0
            self._ended(role, life, self.fleet.servers[role].died())

    def _ended(self, role: str, life: _Life, error: LookaheadError) -> None:
        life.ends += 1
        if life.ends > self.patience.restarts:
            life.given_up = True
            life.release()
            if role == "target":
                raise error
            self.tell(Event(role, "given up", error.message, hint=error.hint))
            return
        if life.port is None:
            try:
                # Keeps the port from other servers of this user until the server is up again.
                life.port = Reservation(int(self.fleet.servers[role].url.rpartition(":")[2]), role)
            except LaunchError:
                life.port = None  # it is taken: the server itself reports that, unless it is free by then
        delay = self.patience.delay(life.ends)
        life.due = time.monotonic() + delay
        self.tell(Event(role, "ended", error.message, delay, error.hint))

    def _start(self, role: str, life: _Life) -> None:
        old = self.fleet.servers[role]
        server = self.fleet.servers[role] = old.again(self._argv(role, old.argv))
        life.due, life.error = None, None
        life.rising = threading.Thread(target=self._rise, args=(server, life), name=f"lr-restart-{role}", daemon=True)
        life.rising.start()

    def _rise(self, server: Server, life: _Life) -> None:
        try:
            server.start()
            server.wait_ready(self.timeout, cancelled=self.ending)
        except LookaheadError as error:
            life.error = error
            server.stop()

    def _risen(self, role: str, life: _Life) -> None:
        life.rising = None
        if isinstance(life.error, Cancelled):
            return
        if life.error is not None:
            self._ended(role, life, life.error)
            return
        life.release()
        life.since = time.monotonic()
        self.tell(Event(role, "back", f"ready again at {self.fleet.servers[role].url}"))

    def _shares(self, one: str, other: str) -> bool:
        return same_gpu(self.fleet.deployment, one, other)

    def _argv(self, role: str, argv: Sequence[str]) -> Sequence[str]:
        """The command, with the memory fraction that stands for what it had: its neighbours are up now."""
        if FRACTION not in argv:
            return argv
        runtimes = self.fleet.deployment.runtimes
        up = [other for other in self._lives if other != role and self.fleet.servers[other].alive()]
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
            for other in self._lives
            if (other == role or self._shares(role, other))
            and gpu in gpus_of(runtimes[other])
            and (fraction := runtimes[other].memory_fraction) is not None
        }
