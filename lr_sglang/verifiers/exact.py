"""Accepts identical token ids, with the end of sequence: answers are the target's own draws."""

from __future__ import annotations

from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.steps.step import Verdict
from lr_sglang.verifiers.verifier_registry import Setup


class Exact:
    """Compares token ids; asks no runtime."""

    name = "exact"
    exact = True  # see ``AnswerRequest.exact``

    @classmethod
    def make(cls, setup: Setup) -> Exact:
        return cls()

    def verify(self, inquiry: Inquiry) -> Verdict:
        target = inquiry.pair.target
        draft = inquiry.pair.draft
        same = target.ids == draft.ids and target.vocabulary == draft.vocabulary
        return Verdict(same, self.name)
