"""Which requests a runtime serves, how fast, and which wait. It has no clock: every call says what time it is.

All requests in a batch are served alike. With n of them each is served at 1 / (1 + slowdown (n - 1)) of the speed that
one has alone; beyond ``slots`` they wait their turn.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

# Rounding errors of sums of times.
_NEARLY = 1e-9


@dataclass(eq=False)
class Ticket:
    """One request.

    Attributes:
        work: seconds that it takes alone.
        owner: the caller's.
        priority: higher goes first of those that wait.
        lead: service that it is owed, for it came before the clock was.
        finish: the service at which it is done, on the runtime's own scale, once it is served.
    """

    work: float
    owner: Any = None
    priority: int = 0
    finish: float = math.inf
    lead: float = 0.0
    gone: bool = False
    order: int = field(default=0, repr=False)

    def __lt__(self, other: Ticket) -> bool:
        return (self.finish, self.order) < (other.finish, other.order)


class RuntimeTiming:
    """Serves tickets. Not thread-safe.

    Args:
        slowdown: what each further request of a batch costs the others.
        slots: requests served at a time; None is any number.
    """

    def __init__(self, slowdown: float = 0.0, slots: int | None = None) -> None:
        self.slowdown, self.slots = slowdown, slots
        self.most = 0
        self._served: list[Ticket] = []  # a heap; tickets that are gone stay until they are on top
        self._waiting: deque[Ticket] = deque()
        self._count = 0
        self._service, self._now = 0.0, -math.inf
        self._orders = itertools.count()

    @property
    def steady(self) -> bool:
        """Whether no request's end depends on the others."""
        return not self.slowdown and self.slots is None

    def add(self, now: float, ticket: Ticket) -> None:
        """A request comes."""
        self._advance(now)
        ticket.order, ticket.lead = next(self._orders), (self._now - now) * self._speed()
        self._waiting.append(ticket)
        self._admit()

    def remove(self, now: float, ticket: Ticket) -> None:
        """A request is served, or was given up."""
        if ticket.gone:
            return
        self._advance(now)
        ticket.gone = True
        if ticket.finish < math.inf:
            self._count -= 1
        else:
            self._waiting.remove(ticket)
        self._admit()

    def served(self, now: float, ticket: Ticket) -> float:
        """What share of a request is done; exactly 1 when it is served."""
        self._advance(now)
        left = ticket.finish - self._service
        if left <= _NEARLY:
            return 1.0
        return max(0.0, 1 - left / ticket.work) if left < math.inf else 0.0

    def head(self) -> Ticket | None:
        """The one that is served first."""
        while self._served and self._served[0].gone:
            heapq.heappop(self._served)
        return self._served[0] if self._served else None

    def due(self, ticket: Ticket) -> float:
        """When a request is served if no other comes or goes; infinite while it waits."""
        left = max(0.0, ticket.finish - self._service)
        return self._now + left / self._speed() if left else self._now

    def next_due(self) -> float:
        """When the first of all is served."""
        head = self.head()
        return math.inf if head is None else self.due(head)

    def _speed(self) -> float:
        return 1 / (1 + self.slowdown * max(0, self._count - 1))

    def _advance(self, now: float) -> None:
        if self._count and now > self._now:
            self._service += (now - self._now) * self._speed()
        self._now = max(now, self._now)

    def _admit(self) -> None:
        while self._waiting and (self.slots is None or self._count < self.slots):
            ticket = max(self._waiting, key=lambda waiting: waiting.priority)  # the first of equals
            self._waiting.remove(ticket)
            ticket.finish = self._service + max(0.0, ticket.work - ticket.lead)
            heapq.heappush(self._served, ticket)
            self._count += 1
            self.most = max(self.most, self._count)
