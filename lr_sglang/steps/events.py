"""Events of an answer while it is made, for a page, a log or a notebook."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from lr_sglang.steps.node import Verdict

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
