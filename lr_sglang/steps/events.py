"""Events of an answer while it is made, for a page, a log or a notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from lr_sglang.steps.branch import Outcome
from lr_sglang.steps.step import Step, Verdict
from lr_sglang.steps.tree import Node

Kind = Literal[
    "begun",
    "done",
    "cancelled",
    "drafted",
    "written",
    "prepared",
    "verified",
    "accepted",
    "corrected",
    "bonus",
    "dropped",
    "ended",
]


@dataclass(frozen=True)
class Event:
    """One event of one answer.

    Nodes (prefixes of the answer) have numbers in the order in which they appear; the prompt is 0.

    Attributes:
        kind: ``begun``: a branch was sent to a runtime, one event for each. ``done``: it has its
            result. ``cancelled``: it was given up before. ``drafted``: the draft's version, the
            step of ``node``, has arrived. ``written``: the target's version of the step after
            ``prefix`` has arrived. ``prepared``: that version became ``node``, so that branches can
            follow it before it is kept. ``verified``: the verdict on ``node`` has arrived.
            ``accepted``, ``corrected`` or ``bonus``: ``node`` is now a step of the answer.
            ``dropped``: ``node`` was dropped, or the target's branch after ``prefix`` if ``node``
            is None. ``ended``: the answer is complete.
        seconds: since the question was asked.
        role: the role whose branch or text it is; empty for ``ended``.
        position: index of the step in the answer, from 0.
        prefix: the node that the step follows.
        node: the node that the step leads to; None while the target's version has none.
        text: the step, if the event has one; ``tokens`` is its length.
        branch: of ``done`` and ``cancelled``: which, by the number of its ``begun`` among all, from
            1.
        outcome: of a dropped branch ``rejected`` or ``cancelled``; of the answer ``stop`` or
            ``length``.
    """

    kind: Kind
    seconds: float
    role: str
    position: int
    prefix: int
    node: int | None = None
    text: str = ""
    tokens: int = 0
    verdict: Verdict | None = None
    branch: int | None = None
    outcome: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The event for JSON, without empty fields."""
        always = {
            "kind": self.kind,
            "seconds": self.seconds,
            "position": self.position,
            "prefix": self.prefix,
        }
        return always | {
            key: value for key, value in asdict(self).items() if value not in (None, "", 0)
        }


class EventEmitter:
    """Numbers the nodes of one answer and emits its events. Without a callback it does nothing.

    Args:
        on_event: called with every event, on the event loop; None emits nothing.
        now: returns seconds since the question was asked.
    """

    def __init__(self, on_event: Callable[[Event], None] | None, now: Callable[[], float]) -> None:
        self._on_event = on_event
        self._now = now
        self._numbers = 0
        self._begun = 0
        self._running: dict[int, Event] = {}  # by the branch's number, its first event

    def begun(self, role: str, prefix: Node, node: Node | None) -> int:
        """A branch was sent to a runtime; returns its number."""
        self._begun += 1
        event = self._emit("begun", role, prefix, node)
        if event is not None:
            self._running[self._begun] = event
        return self._begun

    def done(self, branch: int, cancelled: bool = False) -> None:
        """A branch has its result, or was given up before. Only the first of the two is told."""
        first = self._running.pop(branch, None)
        if first is not None and self._on_event is not None:
            kind: Kind = "cancelled" if cancelled else "done"
            self._on_event(replace(first, kind=kind, seconds=self._now(), branch=branch))

    def drafted(self, node: Node) -> None:
        """The draft's version of a step has arrived."""
        self._emit("drafted", "draft", node.parent, node, node.step)

    def written(self, prefix: Node) -> None:
        """The target's version of a step has arrived."""
        self._emit("written", "target", prefix, None, prefix.version.step)

    def verified(self, node: Node, verdict: Verdict) -> None:
        """The verdict on a drafted step has arrived."""
        self._emit("verified", "judge", node.parent, node, verdict=verdict)

    def kept(self, prefix: Node, node: Node, outcome: Outcome) -> None:
        """A step of the answer is decided."""
        kind: Kind = "accepted" if outcome is Outcome.ACCEPTED else "corrected"
        kind = "bonus" if outcome is Outcome.BONUS else kind
        self._emit(kind, node.source, prefix, node, node.step)

    def dropped(self, role: str, prefix: Node | None, node: Node | None, outcome: Outcome) -> None:
        """A drafted node, or the target's branch after a prefix, was dropped."""
        self._emit("dropped", role, prefix, node, outcome=outcome.value)

    def ended(self, node: Node, finish: str) -> None:
        """The answer is complete; branches that still run are given up."""
        self._emit("ended", "", node, None, outcome=finish)
        self._running.clear()
        self._on_event = None

    def _emit(
        self,
        kind: Kind,
        role: str,
        prefix: Node | None,
        node: Node | None,
        step: Step | None = None,
        **more: Any,
    ) -> Event | None:
        if self._on_event is not None and prefix is not None:
            if prefix.number is None and prefix.parent is not None:
                # the target's version, which branches may follow before it is kept
                self._emit("prepared", "target", prefix.parent, prefix, prefix.step)
            if step is not None:
                more |= {"text": step.text, "tokens": len(step.ids)}
            before = self._number(prefix)
            number = None if node is None else self._number(node)
            event = Event(kind, self._now(), role, prefix.position, before, number, **more)
            self._on_event(event)
            return event
        return None

    def _number(self, node: Node) -> int:
        if node.number is None:
            node.number = self._numbers
            self._numbers += 1
        return node.number
