"""The meaning of a step of a pocket problem, parsed from its text: the ground truth for
verifiers.
"""

from __future__ import annotations

import re

_EQUATION = re.compile(r"(\d+) ?([-+*/]) ?(\d+) ?= ?(\d+)")
BOXED = re.compile(r"\\boxed\{(\d+)\}")


def meaning(step: str) -> str | None:
    """The equations and the boxed answer of a step in a normal form; None if it has neither.

    ``2 + 3 = 5`` and ``3 + 2 = 5`` mean the same; so do two products in either order.
    """
    parts = []
    for a, operator, b, result in _EQUATION.findall(step):
        x, y = int(a), int(b)
        if operator in "+*":
            x, y = min(x, y), max(x, y)
        parts.append(f"{x}{operator}{y}={int(result)}")
    parts += [f"boxed={int(n)}" for n in BOXED.findall(step)]
    return ";".join(parts) or None


def same_meaning(first: str, second: str) -> bool:
    """Whether both steps have a meaning, and their meanings are equal."""
    return meaning(first) is not None and meaning(first) == meaning(second)
