"""Cheap verifiers first; the last one, which is the dearest, is asked only where they are unsure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lr_sglang.algorithm.inquiry import Inquiry, Verifier, ask
from lr_sglang.steps.tree import Verdict
from lr_sglang.verifiers import verifier_registry
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
    """Asks the stages in order until one is sure; the verdict of the last always counts.

    The verdict is the deciding stage's own, with those before it in ``earlier``: their scores are what
    ``lr-sglang calibrate`` reads.
    """

    name = "cascade"

    def __init__(self, stages: Sequence[Sure], last: Verifier) -> None:
        self.stages, self.last = tuple(stages), last

    @classmethod
    def make(cls, setup: Setup, maker: Callable[[str], Verifier]) -> Cascade:
        """``maker`` makes a stage of its name."""
        *stages, last = verifier_registry.stages(setup.argument)
        sure = [Sure(maker(one.verifier), one.reject_below, one.accept_above) for one in stages]
        return cls(sure, maker(last.verifier))

    async def verify(self, inquiry: Inquiry) -> Verdict:
        earlier: tuple[Verdict, ...] = ()
        now = inquiry.state.stream_executor.loop.time
        for stage in self.stages:
            asked = now()
            verdict = await ask(stage.verifier, inquiry)
            if sure := stage.decides(verdict):
                return dataclasses.replace(sure, earlier=earlier)
            earlier += (dataclasses.replace(verdict, seconds=now() - asked),)
        return dataclasses.replace(await ask(self.last, inquiry), earlier=earlier)
