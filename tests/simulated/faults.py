"""Configurable faults of a simulated runtime: their kinds, frequency and start."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["late", "fail", "busy", "hang", "die", "garbage"]


@dataclass(frozen=True)
class Fault:
    """A configured fault.

    Attributes:
        kind: ``late`` takes ``seconds`` longer; ``fail`` replies with an error status, ``busy``
            with that of a full server; ``hang`` never replies; ``die`` ends the runtime;
            ``garbage`` is a reply that is no generation.
        share: share of requests with the fault, drawn with a seed.
        times: maximum number of requests with the fault; None for no limit.
        after: number of first requests without the fault.
    """

    kind: Kind
    share: float = 1.0
    times: int | None = None
    after: int = 0
    seconds: float = 1.0


class Faults:
    """The faults of a runtime."""

    def __init__(self) -> None:
        self._orders: list[list[Any]] = []  # fault, requests seen, times left
        self._draw = random.Random(0)
        self.dead = False

    def order(self, fault: Fault) -> None:
        self._orders.append([fault, 0, fault.times])

    def clear(self) -> None:
        self._orders.clear()
        self.dead = False

    def next(self) -> Fault | None:
        """The fault of the next request: the first one that applies, or None."""
        for order in self._orders:
            fault: Fault
            fault, seen, left = order
            order[1] += 1
            if seen < fault.after or left == 0 or self._draw.random() >= fault.share:
                continue
            if left is not None:
                order[2] -= 1
            self.dead = self.dead or fault.kind == "die"
            return fault
        return None
