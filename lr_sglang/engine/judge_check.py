"""Whether a judge is trusted: what it said of pairs of steps that differ, of which it should accept
none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce

from lr_sglang.engine.doubts import warn
from lr_sglang.theory.shares import LEAST_VERDICTS, FalseAccepts


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
