"""The requests of one answer that are in flight: who waits for what, how many there are, and what became of them."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from lr_sglang.call import Call
from lr_sglang.dsl import Inbox, Inquiry
from lr_sglang.errors import Cancelled, LookaheadError
from lr_sglang.generation import Generation
from lr_sglang.reuse import Unsettled
from lr_sglang.sglang_api.interpreter import ProgramState
from lr_sglang.steps import Step
from lr_sglang.trace import Trace
from lr_sglang.tree import Branch, Node, Outcome

# After its end an answer waits this long for the runtimes to be rid of its branches.
DRAIN_SECONDS = 10.0

# When nothing has come for so long, there is time for what is not urgent; where something always comes, it is put off
# for as long.
QUIET_SECONDS = 0.002

Key = Branch | Inquiry | None


@dataclass(eq=False)
class Arrival:
    """A generation or a verdict: ``node`` is the prefix it belongs to, ``child`` the drafted node it is about."""

    key: Key
    node: Node
    child: Node | None
    result: Any = None


class Way(NamedTuple):
    """How far the draft may go on after a step without being told.

    Attributes:
        steps: so many more.
        room: tokens that are left for them, if this one takes as many as it may.
        lineage: of the node that the step leads to.
    """

    steps: int
    room: int
    lineage: int


@dataclass(eq=False)
class Sent(Arrival):
    """A generation, from before it is asked for until it has arrived.

    Attributes:
        state: writes it.
        before: the step that it follows; None at the beginning.
        step: what was generated, once somebody has made a step of it.
        way: how far the same thread may go on; ``plan`` is what it would write then, ``then`` what it does write:
            ``node`` and ``child`` of that are not known before it is claimed.
        turn: the program and the thread each may come first, and one of them takes it: who asks for what follows; and
            of what is ``held`` ready, whether it is let go, or has ended before somebody needed it.
        wanted: not if it was called off before it was begun.
        fit: whether ``state`` can be used again: not where something else was asked for that is not wanted any more.
    """

    key: Branch
    call: Call = field(default_factory=Call)
    state: ProgramState | None = None
    before: Step | None = None
    step: Step | None = None
    way: Way | None = None
    plan: Sent | None = None
    then: Sent | None = None
    turn: list[bool] = field(default_factory=lambda: [True])
    held: bool = False
    wanted: bool = True
    fit: bool = True

    def takes_turn(self) -> bool:
        """Whether the caller is the first, of two threads."""
        try:
            return self.turn.pop()
        except IndexError:
            return False


class Flight:
    """Everything that one answer has asked for and not heard of yet; the books of every branch.

    Args:
        trace: gets every branch as it begins. Times in it count from now.
        back: is given the states that have written, and whether they can be used again.
        prepare: called while nothing has arrived, until it has nothing more to do.
    """

    def __init__(
        self,
        trace: Trace,
        back: Callable[[ProgramState, bool], None] = lambda state, fit: None,
        prepare: Callable[[], bool] = lambda: False,
    ) -> None:
        self._trace, self._back, self._prepare = trace, back, prepare
        self._began = time.monotonic()
        self._inbox = Inbox()
        self._open: dict[Key, Call | None] = {}
        self._unsettled = Unsettled()
        self._later = deque[Callable[[], None]]()
        self._since = 0.0
        self._going: tuple[Node, Sent] | None = None

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

    def claim(self, child: Node | None) -> Sent | None:
        """What a thread has gone on to write after the step that came last, if that is for ``child``."""
        if self._going is None or child is None or child.parent is not self._going[0]:
            return None
        (node, going), self._going = self._going, None
        going.node, going.child = node, child
        return going

    def _stop_going_on(self) -> None:
        """Nobody has claimed it."""
        if self._going is not None:
            node = self._going[0]
            left = self.claim(Node(node, node.position + 1, source="draft", dropped=True))
            assert left is not None
            self.begin(left.key, left.call)
            self.give_up(left.key, Outcome.CANCELLED)

    def __bool__(self) -> bool:
        return bool(self._open)

    def running(self, role: str) -> tuple[int, int]:
        """Branches of a writer that are in flight and still wanted: hedges, and others."""
        branches = (key for key in self._open if isinstance(key, Branch))
        wanted = [branch.hedged for branch in branches if branch.role == role and branch.outcome is None]
        return sum(wanted), len(wanted) - sum(wanted)

    def later(self, work: Callable[[], None]) -> None:
        """What nobody waits for: it is done once what somebody waits for is on its way, in order."""
        if not self._later:
            self._since = time.monotonic()
        self._later.append(work)

    def catch_up(self) -> None:
        """Does it now, all of it: whatever fails, the rest is done too, and then the first failure is raised."""
        failures = []
        while self._later:
            try:
                self._later.popleft()()
            except Exception as error:  # noqa: BLE001 - a listener's own mistake, whatever it is
                failures.append(error)
        if failures:
            raise failures[0]

    def first_done(self, timeout: float | None = None) -> Arrival:
        """Waits for whatever is done first, and closes its books.

        Raises:
            queue.Empty: nothing is, within ``timeout`` seconds.
        """
        self._stop_going_on()
        if self._later and time.monotonic() - self._since > QUIET_SECONDS:
            self.catch_up()
        arrival: Arrival
        try:
            arrival = self._inbox.first_done(QUIET_SECONDS)
        except queue.Empty:
            self.catch_up()
            self._unsettled.settle()
            while self._prepare() and self._inbox.empty():
                pass
            arrival = self._inbox.first_done(timeout)
        self._open.pop(arrival.key, None)
        if isinstance(arrival, Sent):
            self._note(arrival)
        for branch in arrival.key.branches if isinstance(arrival.key, Inquiry) else [arrival.key]:
            if branch is not None and branch.ended is None:
                self._measure(branch)
        return arrival

    def _note(self, sent: Sent) -> None:
        if sent.then is not None and sent.child is not None:
            self._going = sent.child, sent.then
        elif sent.state is not None:
            self._back(sent.state, sent.fit and not isinstance(sent.result, LookaheadError))

    def _measure(self, branch: Branch) -> None:
        branch.ended = self.now()
        result, branch.call = branch.call.result, None
        if isinstance(result, Cancelled):
            result = result.generation
        elif isinstance(result, LookaheadError):
            branch.error = str(result)
        if isinstance(result, Generation):
            self.later(partial(result.book, branch))

    def give_up(self, branch: Branch | None, outcome: Outcome) -> None:
        """A branch that nobody needs any more is stopped, on the server too."""
        if branch is not None and branch.outcome is None:
            branch.close(outcome)
            if branch.call is not None:
                branch.call.cancelled = True  # if it has not been sent, it will not be
                self.later(branch.call.cancel)

    def land(self) -> None:
        """Cancels what is in flight, waits until the runtimes are rid of it, and completes the books."""
        self._prepare = lambda: False
        for branch in self._trace.branches:
            self.give_up(branch, Outcome.CANCELLED)
        self._open = {key: call for key, call in self._open.items() if call is not None}
        self.catch_up()
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._open or self._going:
            try:
                self.first_done(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
        self.catch_up()
        self._unsettled.settle(whatever=True)
        self._trace.drained = self.now()
