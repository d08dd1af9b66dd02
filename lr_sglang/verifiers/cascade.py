"""Asks cheap verifiers first, and the last, most expensive one only if they do not decide."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lr_sglang.algorithm.inquiry import Inquiry, Verifier, ask
from lr_sglang.steps.step import Verdict
from lr_sglang.verifiers import verifier_registry
from lr_sglang.verifiers.verifier_registry import CascadeStage, Setup


class Cascade:
    """Asks the stages in order until one decides; the last always does.

    ``Verdict.earlier`` has the verdicts of the stages before it.

    Args:
        stages: verifiers, each with the scores at which it decides.
    """

    name = "cascade"

    def __init__(self, stages: Sequence[tuple[Verifier, CascadeStage]], last: Verifier) -> None:
        self.stages = tuple(stages)
        self.last = last

    @classmethod
    def make(cls, setup: Setup) -> Cascade:
        *stages, last = verifier_registry.stages(setup.argument)
        earlier = [
            (verifier_registry.make_verifier(stage.verifier, setup), stage) for stage in stages
        ]
        return cls(earlier, verifier_registry.make_verifier(last.verifier, setup))

    async def verify(self, inquiry: Inquiry) -> Verdict:
        earlier: tuple[Verdict, ...] = ()
        now = inquiry.state.stream_executor.loop.time
        for verifier, stage in self.stages:
            asked = now()
            verdict = await ask(verifier, inquiry)
            if (sure := stage.decides(verdict.score)) is not None:
                return dataclasses.replace(verdict, accepted=sure, earlier=earlier)
            earlier += (dataclasses.replace(verdict, seconds=now() - asked),)
        return dataclasses.replace(await ask(self.last, inquiry), earlier=earlier)
