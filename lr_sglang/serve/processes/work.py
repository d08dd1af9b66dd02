"""Messages between an endpoint's parent and its processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lr_sglang.runtimes import Fleet
from lr_sglang.serve.keys import Keys
from lr_sglang.serve.settings import Service

BOARD = "board"
END, LEAVE = "end", "leave"  # messages to a process: end as by a signal, or at once


@dataclass(frozen=True)
class Room:
    """The properties of a role's runtime that a process has found, as in ``RuntimeBackend``."""

    max_running_requests: int | None
    kv_tokens: int | None
    simulated: bool


@dataclass(frozen=True)
class Work:
    """What each process gets from the parent.

    Attributes:
        fleet: addresses only; the servers are the parent's.
        folder: holds what the processes share: the board and the metrics.
        lean: see ``Plan.lean``.
    """

    service: Service
    keys: Keys
    fleet: Fleet
    folder: Path
    processes: int
    log_level: str
    lean: bool
