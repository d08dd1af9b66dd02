"""Events of an answer while it is made, for a page, a log or a notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lr_sglang.steps.node import Node, Outcome, Verdict

Kind = Literal[
    "begun", "drafted", "written", "prepared", "verified", "accepted", "corrected", "bonus", "dropped", "ended"
]


@dataclass(frozen=True)
class Event:
    """One event of one answer.

    Nodes (prefixes of the answer) have numbers: 0 is the prompt, and every other gets the next one when it appears.

    Attributes:
        kind: ``begun``: a branch was sent to a runtime. ``drafted``: the draft's version of the step that leads to
            ``node`` is there. ``written``: the target's version of the step after ``prefix`` is. ``prepared``: that
            version leads to ``node``, from where work goes on before it is kept. ``verified``: the verdict on ``node``
            is there. ``accepted``, ``corrected`` or ``bonus``: ``node`` is a step of the answer now.
            ``dropped``: ``node``, or without one the target's branch after ``prefix``, is given up. ``ended``: the
            answer is complete.
        seconds: since the question was asked.
        role: whose branch or text it is; empty for ``ended``.
        position: which step of the answer, from 0.
        prefix: the node that the step follows.
        node: the node that the step leads to; None while the target's version has none.
        text: the step, with its ``tokens``, where there is one.
        outcome: of what was dropped (``rejected`` or ``cancelled``); of the answer (``stop`` or ``length``).
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
    outcome: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; what is empty is left out."""
        always = {"kind": self.kind, "seconds": self.seconds, "position": self.position, "prefix": self.prefix}
        return always | {key: value for key, value in asdict(self).items() if value not in (None, "", 0)}


class EventEmitter:
    """Numbers the nodes of one answer and emits its events. Without a callback it does nothing.

    Args:
        on_event: called with every event, on the event loop; None emits nothing.
        now: returns seconds since the question was asked.
    """

    def __init__(self, on_event: Callable[[Event], None] | None, now: Callable[[], float]) -> None:
        self._on_event, self._now = on_event, now
        self._numbers = 0

    def begun(self, role: str, prefix: Node, node: Node | None) -> None:
        """A branch was sent to a runtime."""
        self._emit("begun", role, prefix, node)

    def drafted(self, node: Node) -> None:
        """The draft's version of a step is there."""
        assert node.step is not None
        self._emit("drafted", "draft", node.parent, node, text=node.step.text, tokens=len(node.step.ids))

    def written(self, prefix: Node) -> None:
        """The target's version of a step is there."""
        assert prefix.target is not None
        self._emit("written", "target", prefix, None, text=prefix.target.text, tokens=len(prefix.target.ids))

    def verified(self, node: Node, verdict: Verdict) -> None:
        """There is a verdict on a drafted step."""
        self._emit("verified", "judge", node.parent, node, verdict=verdict)

    def kept(self, prefix: Node, node: Node, outcome: Outcome) -> None:
        """A step of the answer is decided."""
        assert node.step is not None
        kind: Kind = "accepted" if outcome is Outcome.ACCEPTED else "corrected"
        kind = "bonus" if outcome is Outcome.BONUS else kind
        self._emit(kind, node.source, prefix, node, text=node.step.text, tokens=len(node.step.ids))

    def dropped(self, role: str, prefix: Node | None, node: Node | None, outcome: Outcome) -> None:
        """A drafted node, or the target's branch after a prefix, is given up."""
        self._emit("dropped", role, prefix, node, outcome=outcome.value)

    def ended(self, node: Node, finish: str) -> None:
        """The answer is complete."""
        self._emit("ended", "", node, None, outcome=finish)

    def _emit(self, kind: Kind, role: str, prefix: Node | None, node: Node | None, **more: Any) -> None:
        if self._on_event is not None and prefix is not None:
            if prefix.number is None and prefix.parent is not None:
                step = prefix.step  # the target's own, from which the answer may go on before it is kept
                assert step is not None
                self._emit("prepared", "target", prefix.parent, prefix, text=step.text, tokens=len(step.ids))
            before, number = self._number(prefix), None if node is None else self._number(node)
            self._on_event(Event(kind, self._now(), role, prefix.position, before, number, **more))

    def _number(self, node: Node) -> int:
        if node.number is None:
            node.number, self._numbers = self._numbers, self._numbers + 1
        return node.number
