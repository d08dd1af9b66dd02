"""Cheap verifiers first; the last one, which is the dearest, is asked only where they are unsure."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lr_sglang import verifier_names
from lr_sglang.dsl import Inquiry, Verifier
from lr_sglang.tree import Verdict
from lr_sglang.verifiers.setup import Setup


@dataclass(frozen=True)
class Sure:
    """When a stage's score decides. None is never: the stage is then only measured."""

    verifier: Verifier
    reject_below: float | None = None
    accept_above: float | None = None

    def decides(self, verdict: Verdict) -> Verdict | None:
        """What the stage is sure of, or None. A verdict without a score, such as a failed one, is not sure."""
        score = verdict.score
        if score is None:
            return None
        if self.accept_above is not None and score >= self.accept_above:
            return dataclasses.replace(verdict, accepted=True)
        if self.reject_below is not None and score < self.reject_below:
            return dataclasses.replace(verdict, accepted=False)
        return None


class Cascade:
    """Asks the stages in order, until one is sure; the last decides whatever it says.

    The verdict is the deciding stage's own, with those before it in ``earlier``: their scores are what
    ``lr-sglang calibrate`` reads.
    """

    name = "cascade"

    def __init__(self, stages: Sequence[Sure], last: Verifier) -> None:
        self.stages, self.last = tuple(stages), last

    @classmethod
    def make(cls, setup: Setup, maker: Callable[[str], Verifier]) -> Cascade:
        """``maker`` makes a stage of its name."""
        *stages, last = verifier_names.stages(setup.argument)
        sure = [Sure(maker(one.verifier), one.reject_below, one.accept_above) for one in stages]
        return cls(sure, maker(last.verifier))

    def verify(self, inquiry: Inquiry) -> Verdict | None:
        return self._ask(inquiry, 0, ())

    def _ask(self, inquiry: Inquiry, number: int, earlier: tuple[Verdict, ...]) -> Verdict | None:
        asked = time.monotonic()
        last = number == len(self.stages)

        def decided(verdict: Verdict) -> Verdict | None:
            sure = verdict if last else self.stages[number].decides(verdict)
            return sure and dataclasses.replace(sure, earlier=earlier)

        def go_on(verdict: Verdict) -> Verdict | None:
            measured = dataclasses.replace(verdict, seconds=time.monotonic() - asked)
            return self._ask(inquiry, number + 1, (*earlier, measured))

        def heard(verdict: Verdict) -> None:
            sure = decided(verdict)
            if sure is not None:
                inquiry.reply(sure)
            else:
                inquiry.later(lambda: go_on(verdict))

        verifier = self.last if last else self.stages[number].verifier
        verdict = verifier.verify(dataclasses.replace(inquiry, reply=heard))
        return None if verdict is None else decided(verdict) or go_on(verdict)
