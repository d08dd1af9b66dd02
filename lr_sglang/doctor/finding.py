"""What was found of one thing, of this machine or of a runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "fault"]


@dataclass(frozen=True)
class Finding:
    """One line. ``advice`` says what to do.

    Attributes:
        role: of the runtime; empty for the machine, and for the deployment.
        status: a ``fault`` keeps lookahead from running; with a ``warning`` it runs slower or
            otherwise, or lacks a feature.
    """

    role: str
    name: str
    status: Status
    found: str
    advice: str = ""

    @property
    def title(self) -> str:
        """Of what it is."""
        return f"{self.role} {self.name}".lstrip()


def finding(
    role: str,
    name: str,
    good: bool,
    found: str,
    advice: str = "",
    otherwise: Status = "warning",
) -> Finding:
    """``ok`` if it is good, else a warning or a fault with advice."""
    return Finding(role, name, "ok" if good else otherwise, found, "" if good else advice)
