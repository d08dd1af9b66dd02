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


@dataclass(frozen=True)
class Expected:
    """What a mode is expected to do.

    Attributes:
        pace: tokens per second of an answer.
        speedup: over the first mode, the target alone, in the short answers; ``low`` and ``high``
            are its 95 % interval over their problems.
        surely_faster_than: the modes than which it is faster in all of such an interval.
        formula: the same by the formulas, from the times and the acceptance of those answers; None
            where they do not apply.
        depth: the best one by the formulas; None as ``formula``.
    """

    mode: str
    pace: float
    speedup: float
    low: float | None = None
    high: float | None = None
    surely_faster_than: tuple[str, ...] = ()
    formula: float | None = None
    depth: int | None = None


@dataclass
class Examination:
    """All findings of runtimes.

    Attributes:
        modes: what to expect of each that was tried.
        costs: by role, milliseconds of a token by answers at once and of reading by tokens.
        answers: how many short ones were made in each mode.
        fed: whether the target takes lines; mode ``sd`` is then the guesses of its server's own.
    """

    lines: list[Finding] = field(default_factory=list)
    modes: list[Expected] = field(default_factory=list)
    costs: dict[str, dict[str, float]] = field(default_factory=dict)
    answers: int = 0
    fed: bool = False

    @property
    def able(self) -> bool:
        """Whether lookahead can run."""
        return all(one.status != "fault" for one in self.lines)

    @property
    def best(self) -> Expected | None:
        """The mode that is surely faster than each of the others; None if the short answers do not
        tell.
        """
        others = len(self.modes) - 1
        return next((one for one in self.modes if len(one.surely_faster_than) == others), None)
