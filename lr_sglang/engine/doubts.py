"""What the requests of answers show of a runtime: that it computes prefixes again which it has
computed, that it takes no aborts, that it ignores seeds, that it has fewer slots than asked for,
that its token layer takes no lines, that it gives other tokens or another template to a prompt.
Answers are right all the same, and slower or other ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from lr_sglang.steps.branch import Branch

REUSED = 0.9  # tokens found in the cache over those that could be, below which it is said
BRANCHES = 20  # over which reuse is looked at
UNHEARD = 3  # aborts in a row that were not taken

Name = Literal["reuse", "aborts", "seeds", "slots", "fed", "tokens", "template"]


def warn(text: str) -> None:
    """Warns whoever has called from Python."""
    warnings.warn(text, RuntimeWarning, stacklevel=3)


@dataclass(eq=False)
class Doubts:
    """The doubts about one runtime, shared by all answers.

    Attributes:
        warn: called once for each doubt, on the event loop.
        little_reuse: why prefixes may be computed again, as its servers' settings say.
        found: the doubts so far, by name.
    """

    role: str
    warn: Callable[[str], None] = warn
    little_reuse: str = ""
    found: dict[Name, str] = field(default_factory=dict)
    _branches: int = 0
    _reused: int = 0
    _shared: int = 0
    _unheard: int = 0

    def add(self, branch: Branch) -> None:
        """Looks at a branch that has ended."""
        if branch.cancelled:
            self._unheard = self._unheard + 1 if branch.unheard else 0
        if self._unheard >= UNHEARD:
            self.note(
                "aborts",
                f"it takes no aborts ({UNHEARD} in a row), so that refused branches go on and slow "
                "the others down",
            )
        if not branch.shared_tokens:
            return
        self._branches += 1
        self._reused += branch.reused_tokens
        self._shared += branch.shared_tokens
        if self._branches < BRANCHES:
            return
        if (share := self._reused / self._shared) < REUSED:
            why = self.little_reuse or "its memory may be short, or others may use it"
            self.note(
                "reuse", f"{share:.2f} of the tokens that it could have reused were reused: {why}"
            )
        self._branches = self._reused = self._shared = 0

    def has(self, name: Name) -> float:
        """1.0 if there is this doubt, else 0.0."""
        return float(name in self.found)

    def note(self, name: Name, text: str) -> None:
        """Adds a doubt, and says it once."""
        if name not in self.found:
            self.found[name] = text
            self.warn(f"{self.role}: {text} (lr-sglang doctor examines it)")
