"""What the requests of answers show of a runtime (``Doubts``): that it computes prefixes again
which it has computed, that it takes no aborts, that it ignores seeds, that it has fewer slots than
asked for, that its token layer takes no lines, that it gives other tokens or another template to a
prompt. Answers are right all the same, and slower or other ones. And what a judge has said of pairs
of steps that differ, of which it should accept none (``JudgeCheck``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal

from lr_sglang.steps.branch import Branch
from lr_sglang.theory.shares import LEAST_VERDICTS, FalseAccepts

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


@dataclass(eq=False)
class JudgeCheck:
    """The check of one verifier that may ask the judge, shared by all answers.

    Attributes:
        warn: called, on the event loop, when the verifier is not trusted.
        found: its verdicts on pairs of steps that differ; they count if it asks the judge.
        asks: whether it has asked the judge about a pair.
        begun: whether it has been asked about the pairs.
    """

    verifier: str
    warn: Callable[[str], None]
    found: FalseAccepts = field(default_factory=FalseAccepts)
    asks: bool = False
    begun: bool = False

    @property
    def known(self) -> FalseAccepts | None:
        """The verdicts so far; None before the first one."""
        return self.found if self.asks and self.found.asked else None

    def trusted(self, most: float) -> bool:
        """Whether the lower bound of its share of false accepts is at most ``most``."""
        return self.known is None or self.found.surely <= most

    def add(self, accepted: list[bool], most: float) -> None:
        """Counts verdicts on pairs that differ; warns if the verifier is not trusted."""
        self.found = reduce(FalseAccepts.plus, accepted, self.found)
        if not self.trusted(most):
            who = "it" if self.verifier == "judge" else f"verifier {self.verifier}"
            self.warn(
                f"judge: {who} accepted {self.found.accepted} of {self.found.asked} pairs of "
                "steps that differ; it is "
                "shown no draft, and the target answers alone "
                "(-o lookahead.max_false_accepts=1 trusts it all the same)"
            )

    def shown_alike(self, accepted: list[bool], prompt: str) -> None:
        """Warns if the judge accepted none of the pairs that say the same.

        Args:
            prompt: the name of the judge's prompt.
        """
        if self.asks and len(accepted) >= LEAST_VERDICTS and not any(accepted):
            self.warn(
                f"judge: it accepted none of {len(accepted)} pairs of steps that say the same, "
                "and will hardly accept "
                f"a draft; it was asked by the prompt {prompt!r} (-o judge_prompt=NAME, or "
                "judge_prompt in the file)"
            )


@dataclass(eq=False)
class JudgeChecks:
    """The checks of all verifiers that may ask one judge, by name.

    Attributes:
        warn: the ``warn`` of checks that are made from now on.
    """

    warn: Callable[[str], None] = warn
    made: dict[str, JudgeCheck] = field(default_factory=dict)

    def of(self, verifier: str) -> JudgeCheck:
        """The check of one verifier."""
        if verifier not in self.made:
            self.made[verifier] = JudgeCheck(verifier, self.warn)
        return self.made[verifier]

    def worst(self) -> FalseAccepts | None:
        """The verdicts of the verifier whose share of false accepts has the highest lower bound."""
        known = [check.known for check in self.made.values() if check.known is not None]
        return max(known, key=lambda found: (found.surely, found.asked), default=None)
