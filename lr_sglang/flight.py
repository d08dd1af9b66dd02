"""The requests of one answer that are in flight: who waits for what, how many there are, and what became of them."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang.lang.interpreter import ProgramState

from lr_sglang.dsl import Inbox, Inquiry
from lr_sglang.errors import Cancelled, LookaheadError
from lr_sglang.generation import Generation
from lr_sglang.reuse import Unsettled
from lr_sglang.trace import Trace
from lr_sglang.transport import Call
from lr_sglang.tree import Branch, Node, Outcome

# After its end an answer waits this long for the runtimes to be rid of its branches.
DRAIN_SECONDS = 10.0

# When nothing has come for so long, there is time for what is not urgent.
QUIET_SECONDS = 0.002

Key = Branch | Inquiry | None


@dataclass(frozen=True)
class Arrival:
    """A generation or a verdict: ``node`` is the prefix it belongs to, ``child`` the drafted node it is about."""

    key: Key
    node: Node
    child: Node | None
    result: Any
    state: ProgramState | None = None


class Flight:
    """Everything that one answer has asked for and not heard of yet; the books of every branch.

    Args:
        trace: gets every branch as it begins. Times in it count from now.
        prepare: called while nothing has arrived, until it has nothing more to do.
    """

    def __init__(self, trace: Trace, prepare: Callable[[], bool] = lambda: False) -> None:
        self._trace, self._prepare = trace, prepare
        self._began = time.monotonic()
        self._inbox = Inbox()
        self._open: dict[Key, Call | None] = {}
        self._unsettled = Unsettled()
        self._unwanted: list[Call] = []

    def now(self) -> float:
        """Seconds since the answer began."""
        return time.monotonic() - self._began

    def begin(self, branch: Branch, call: Call, key: Inquiry | None = None) -> None:
        """One more request; ``key`` is the inquiry that it is for, where it is a judge's."""
        branch.started, branch.call = self.now(), call
        self._trace.branches.append(branch)
        self._unsettled.add(branch)
        self._open[key or branch] = call

    def expect(self, inquiry: Inquiry) -> None:
        """A verdict will arrive, with a request to a runtime or without."""
        self._open.setdefault(inquiry, None)

    def forget(self, inquiry: Inquiry) -> None:
        """The verdict is there already."""
        self._open.pop(inquiry, None)

    def arrive(self, arrival: Arrival) -> None:
        """Called from any thread."""
        self._inbox.put(arrival)

    def __bool__(self) -> bool:
        return bool(self._open)

    def running(self, role: str) -> tuple[int, int]:
        """Branches of a writer that are in flight and still wanted: hedges, and others."""
        branches = (key for key in self._open if isinstance(key, Branch))
        wanted = [branch.hedged for branch in branches if branch.role == role and branch.outcome is None]
        return sum(wanted), len(wanted) - sum(wanted)

    def first_done(self, timeout: float | None = None) -> Arrival:
        """Waits for whatever is done first, and closes its books.

        What nobody waits for is done here, once the branches that somebody waits for are on their way.

        Raises:
            queue.Empty: nothing is, within ``timeout`` seconds.
        """
        while self._unwanted:
            self._unwanted.pop().cancel()
        arrival: Arrival
        try:
            arrival = self._inbox.first_done(QUIET_SECONDS)
        except queue.Empty:
            self._unsettled.settle()
            while self._prepare() and self._inbox.empty():
                pass
            arrival = self._inbox.first_done(timeout)
        self._open.pop(arrival.key, None)
        for branch in arrival.key.branches if isinstance(arrival.key, Inquiry) else [arrival.key]:
            if branch is not None and branch.ended is None:
                self._measure(branch)
        return arrival

    def _measure(self, branch: Branch) -> None:
        branch.ended = self.now()
        result, branch.call = branch.call.result, None
        if isinstance(result, Cancelled):
            result = result.generation
        elif isinstance(result, LookaheadError):
            branch.error = str(result)
        if isinstance(result, Generation):
            result.book(branch)

    def give_up(self, branch: Branch | None, outcome: Outcome) -> None:
        """A branch that nobody needs any more is stopped, on the server too."""
        if branch is not None and branch.outcome is None:
            branch.close(outcome)
            if branch.call is not None:
                branch.call.cancelled = True  # if it has not been sent, it will not be
                self._unwanted.append(branch.call)

    def land(self) -> None:
        """Cancels what is in flight, waits until the runtimes are rid of it, and completes the books."""
        for branch in self._trace.branches:
            self.give_up(branch, Outcome.CANCELLED)
        self._open = {key: call for key, call in self._open.items() if call is not None}
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._open:
            try:
                self.first_done(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
        self._unsettled.settle(whatever=True)
        self._trace.drained = self.now()
