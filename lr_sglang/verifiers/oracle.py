"""Decides as ``random`` does, after asking the judge all the same: the acceptance is given, the time is the judge's."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable

from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.programs.judge import JudgePrompt
from lr_sglang.steps.tree import Verdict
from lr_sglang.verifiers import verifier_registry
from lr_sglang.verifiers.judge import Judge
from lr_sglang.verifiers.random import Random
from lr_sglang.verifiers.setup import Setup


class Oracle(Judge):
    """For models of random weights: the judge's verdicts mean nothing, but the time that they take does.

    Token ids of such models are mostly no text. The judge reads one word for each token instead.
    """

    name = "oracle"
    reads_words = False

    def __init__(self, backend: RuntimeBackend, prompt: JudgePrompt, alpha: float) -> None:
        super().__init__(backend, prompt)
        self.random = Random(alpha)

    @classmethod
    def make(cls, setup: Setup) -> Oracle:
        return cls(setup.backend("judge"), setup.prompt(), verifier_registry.number(cls.name, setup.argument))

    def verify(self, inquiry: Inquiry) -> Verdict | Awaitable[Verdict]:
        target, draft = (_words(ids) for ids in (inquiry.pair.target.ids, inquiry.pair.draft.ids))
        return self._ask(
            inquiry, target, draft, lambda _: dataclasses.replace(self.random.verify(inquiry), by=self.name)
        )


def _words(ids: tuple[int, ...]) -> str:
    return " ".join(chr(ord("a") + token % 26) for token in ids)
