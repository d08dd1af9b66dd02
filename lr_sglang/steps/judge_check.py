"""Checks a judge with pairs of steps that differ, of which it should accept none."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from lr_sglang.theory.shares import LEAST, FalseAccepts

SHARE = 0.02  # seconds that checks may take, per second of verdicts on answers


@dataclass(eq=False)
class JudgeCheck:
    """The check of one verifier that may ask the judge, shared by all answers.

    Attributes:
        warn: called once, on the event loop, when the verifier is not trusted.
        found: its verdicts on pairs of steps that differ.
        asks: whether it has asked the judge; before that the check has no effect.
        begun: whether it has been asked about the pairs at start.
        showing: whether it is judging such a pair now.
        verdicts, judging: number and seconds of its verdicts for answers; ``checking``: seconds of
            those on such pairs.
    """

    verifier: str
    warn: Callable[[str], None]
    found: FalseAccepts = field(default_factory=FalseAccepts)
    asks: bool = False
    begun: bool = False
    showing: bool = False
    verdicts: int = 0
    judging: float = 0.0
    checking: float = 0.0
    _warned: bool = False

    @property
    def known(self) -> FalseAccepts | None:
        """The verdicts so far; None before the first one."""
        return self.found if self.asks and self.found.asked else None

    def trusted(self, most: float) -> bool:
        """Whether the lower bound of its share of false accepts is at most ``most``."""
        return self.known is None or self.found.surely <= most

    def judged(self, seconds: float) -> bool:
        """Counts a verdict for an answer. Returns whether SHARE leaves time to judge a pair of
        steps that differ.
        """
        self.verdicts += seconds > 0  # identical versions are not judged
        self.judging += seconds
        one = self.judging / max(1, self.verdicts)
        return self.asks and not self.showing and self.checking + one < SHARE * self.judging

    def asked_judge(self, most: float) -> None:
        """Records that the verifier asks the judge for an answer: from now on all verdicts of the
        check count.
        """
        if not self.asks:
            self.asks = True
            self.add([], most)

    def add(self, accepted: list[bool], most: float) -> None:
        """Counts verdicts on pairs that differ; warns, once, if the verifier is not trusted."""
        for one in accepted:
            self.found = self.found.plus(one)
        if not self._warned and not self.trusted(most):
            self._warned, who = (
                True,
                "it" if self.verifier == "judge" else f"verifier {self.verifier}",
            )
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
        if self.asks and len(accepted) >= LEAST and not any(accepted):
            self.warn(
                f"judge: it accepted none of {len(accepted)} pairs of steps that say the same, "
                "and will hardly accept "
                f"a draft; it was asked by the prompt {prompt!r} (-o judge_prompt=NAME, or "
                "judge_prompt in the file)"
            )


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)


@dataclass(eq=False)
class JudgeChecks:
    """The checks of all verifiers that may ask one judge, by name.

    Attributes:
        pairs: the deployment's file of pairs; empty for the built-in ones.
        warn: the ``warn`` of checks that are made from now on.
    """

    pairs: str = ""
    warn: Callable[[str], None] = _warn
    made: dict[str, JudgeCheck] = field(default_factory=dict)

    def of(self, verifier: str) -> JudgeCheck:
        """The check of one verifier."""
        return self.made.setdefault(verifier, JudgeCheck(verifier, self.warn))

    def worst(self) -> FalseAccepts | None:
        """The verdicts of the verifier whose share of false accepts has the highest lower bound."""
        known = [check.known for check in self.made.values() if check.known is not None]
        return max(known, key=lambda found: (found.surely, found.asked), default=None)


def read_alike(one: str, other: str) -> bool:
    """Whether two steps share half of the shorter one's character trigrams: they may then mean the
    same.
    """
    first, second = (_pieces(" ".join(text.casefold().split())) for text in (one, other))
    return 2 * len(first & second) >= min(len(first), len(second))


def _pieces(text: str) -> set[str]:
    return {text[at : at + 3] for at in range(len(text) - 2)}
