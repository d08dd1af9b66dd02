"""Shared memory of an endpoint's processes: a row of numbers for each process, in a file that all
of them map.

One more row holds the costs of requests, which one process measures for all. A single process has
no file.
"""

from __future__ import annotations

import fcntl
import mmap
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, fields
from enum import IntEnum
from pathlib import Path

from lr_sglang.engine.costs import Costs

# How long a process waits for the lock. It is held for microseconds, unless a signal has stopped
# the process that holds it: then the others go on without it for a while, and at worst admit a
# request too many.
LOCK_SECONDS, UNLOCKED_SECONDS = 0.05, 1.0
FRESH_SECONDS = 1.0  # a row that is older is left out: its process may hang


class Column(IntEnum):
    """The columns of a process's row.

    ``SEEN`` is the time of its last write, ``OLDEST`` the arrival of its first waiting request (0:
    none waits), in seconds of the monotonic clock. ``CLAIMED`` and ``WANTED`` are the slots of the
    first runtime that it has claimed and could use; a pair for each further runtime follows.
    """

    SEEN = 0
    CONNECTIONS = 1
    RUNNING = 2
    WAITING = 3
    OLDEST = 4
    CLAIMED = 5
    WANTED = 6


RUNTIMES = 3  # at most
WIDTH = Column.CLAIMED + 2 * RUNTIMES


class Board:
    """One process's view of the rows.

    Args:
        path: of the file that ``make`` made; None for a single process.
        number: of this process, from 0.
        processes: how many share the file.
    """

    def __init__(self, path: Path | None = None, number: int = 0, processes: int = 1) -> None:
        self.number, self.processes = number, processes
        self._file = None if path is None else path.open("r+b")
        rows = (
            array("d", _empty(processes))
            if self._file is None
            else mmap.mmap(self._file.fileno(), 0)
        )
        self._cells = memoryview(rows).cast("B").cast("d")
        self._unlocked_until = 0.0

    @staticmethod
    def make(path: Path, processes: int) -> None:
        path.write_bytes(_empty(processes))

    def part(self, limit: int) -> int:
        """One process's share of a limit for all of them, rounded up."""
        return -(-limit // self.processes)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock, or goes on without it if a stopped process has it (see ``LOCK_SECONDS``).

        The kernel releases the lock when its owner dies.
        """
        if self._file is None:
            yield
            return
        held = self._lock(self._file.fileno())
        try:
            yield
        finally:
            if held:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _lock(self, file: int) -> bool:
        """Tries to lock for a short time, because a stopped process may hold the lock; returns
        whether it succeeded.
        """
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                now = time.monotonic()
                if now < self._unlocked_until:
                    return False
                if now > deadline:
                    self._unlocked_until = now + UNLOCKED_SECONDS
                    return False
                time.sleep(0.0002)

    def write(self, column: int, value: float) -> None:
        self._cells[self.number * WIDTH + column] = value

    def column(self, column: int) -> list[float]:
        return list(self._cells[column : self.processes * WIDTH : WIDTH])

    def others(self, column: int) -> list[float]:
        """The values of the other processes that have written within ``FRESH_SECONDS``."""
        late = time.monotonic() - FRESH_SECONDS
        both = zip(self.column(column), self.column(Column.SEEN), strict=True)
        return [
            value
            for number, (value, seen) in enumerate(both)
            if number != self.number and seen > late
        ]

    def clear(self, number: int) -> None:
        with self.locked():
            self._cells[number * WIDTH : (number + 1) * WIDTH] = memoryview(
                array("d", bytes(8 * WIDTH))
            )

    def costs(self) -> tuple[bool, Costs | None]:
        """Whether the costs of the target's requests were measured, and what they are; None if
        nothing is known.
        """
        measured, *known = self._cells[self.processes * WIDTH :][: 1 + len(fields(Costs))]
        return bool(measured), Costs(*known) if known[0] else None

    def write_costs(self, costs: Costs | None) -> None:
        """Marks the costs as measured, also if they are not known (None)."""
        row = self._cells[self.processes * WIDTH :]
        if costs is not None:
            row[1 : 1 + len(fields(Costs))] = memoryview(array("d", astuple(costs)))
        row[0] = True  # last, when the row is complete


def _empty(processes: int) -> bytes:
    return bytes(8 * WIDTH * (processes + 1))
