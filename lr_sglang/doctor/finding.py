"""What doctor finds: of one thing of this machine or of a runtime, and of all runtimes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lr_sglang.errors import LookaheadError

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


def fault(error: LookaheadError, name: str, role: str = "") -> Finding:
    """What an error of a runtime, or of its configuration, means."""
    return Finding(error.role or role, name, "fault", error.message, error.hint)


@dataclass
class Examination:
    """All findings of runtimes.

    Attributes:
        costs: by role, milliseconds of a token by answers at once and of reading by tokens.
    """

    lines: list[Finding] = field(default_factory=list)
    costs: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def able(self) -> bool:
        """Whether lookahead can run."""
        return all(one.status != "fault" for one in self.lines)
