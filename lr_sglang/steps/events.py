"""Events of an answer while it is made, for a page, a log or a notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lr_sglang.steps.tree import Node, Outcome, Verdict

Kind = Literal[
    "begun",
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
        kind: ``begun``: a branch was sent to a runtime. ``drafted``: the draft's version, the step
            of ``node``, has arrived. ``written``: the target's version of the step after ``prefix``
            has arrived. ``prepared``: that version became ``node``, so that branches can follow it
            before it is kept. ``verified``: the verdict on ``node`` has arrived. ``accepted``,
            ``corrected`` or ``bonus``: ``node`` is now a step of the answer. ``dropped``: ``node``
            was dropped, or the target's branch after ``prefix`` if ``node`` is None. ``ended``: the
            answer is complete.
        seconds: since the question was asked.
        role: the role whose branch or text it is; empty for ``ended``.
        position: index of the step in the answer, from 0.
        prefix: the node that the step follows.
        node: the node that the step leads to; None while the target's version has none.
        text: the step, if the event has one; ``tokens`` is its length.
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
        self._on_event, self._now = on_event, now
        self._numbers = 0

    def begun(self, role: str, prefix: Node, node: Node | None) -> None:
        """A branch was sent to a runtime."""
        self._emit("begun", role, prefix, node)

    def drafted(self, node: Node) -> None:
        """The draft's version of a step has arrived."""
        assert node.step is not None
        self._emit(
            "drafted", "draft", node.parent, node, text=node.step.text, tokens=len(node.step.ids)
        )

    def written(self, prefix: Node) -> None:
        """The target's version of a step has arrived."""
        assert prefix.target is not None
        self._emit(
            "written",
            "target",
            prefix,
            None,
            text=prefix.target.text,
            tokens=len(prefix.target.ids),
        )

    def verified(self, node: Node, verdict: Verdict) -> None:
        """The verdict on a drafted step has arrived."""
        self._emit("verified", "judge", node.parent, node, verdict=verdict)

    def kept(self, prefix: Node, node: Node, outcome: Outcome) -> None:
        """A step of the answer is decided."""
        assert node.step is not None
        kind: Kind = "accepted" if outcome is Outcome.ACCEPTED else "corrected"
        kind = "bonus" if outcome is Outcome.BONUS else kind
        self._emit(kind, node.source, prefix, node, text=node.step.text, tokens=len(node.step.ids))

    def dropped(self, role: str, prefix: Node | None, node: Node | None, outcome: Outcome) -> None:
        """A drafted node, or the target's branch after a prefix, was dropped."""
        self._emit("dropped", role, prefix, node, outcome=outcome.value)

    def ended(self, node: Node, finish: str) -> None:
        """The answer is complete."""
        self._emit("ended", "", node, None, outcome=finish)

    def _emit(
        self, kind: Kind, role: str, prefix: Node | None, node: Node | None, **more: Any
    ) -> None:
        if self._on_event is not None and prefix is not None:
            if prefix.number is None and prefix.parent is not None:
                step = (
                    prefix.step
                )  # the target's version, which branches may follow before it is kept
                assert step is not None
                self._emit(
                    "prepared",
                    "target",
                    prefix.parent,
                    prefix,
                    text=step.text,
                    tokens=len(step.ids),
                )
            before, number = self._number(prefix), None if node is None else self._number(node)
            self._on_event(Event(kind, self._now(), role, prefix.position, before, number, **more))

    def _number(self, node: Node) -> int:
        if node.number is None:
            node.number, self._numbers = self._numbers, self._numbers + 1
        return node.number


SILENT = EventEmitter(None, lambda: 0.0)  # of answers whose events nobody wants
