"""The target rates the drafted step from 0 to 9, in one token (SpecReason, arXiv 2504.07891; paper
section 4.3).
"""

from __future__ import annotations

from collections.abc import Awaitable

from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.programs.rate import rate
from lr_sglang.steps.branch import Generation
from lr_sglang.steps.step import Verdict
from lr_sglang.verifiers import verifier_registry
from lr_sglang.verifiers.asking import Asking
from lr_sglang.verifiers.verifier_registry import Setup


class Score(Asking):
    """Accepts a rating of at least ``threshold``; rejects if the reply is no digit.

    It reads the draft's version only.
    """

    name = "score"

    def __init__(self, backend: RuntimeBackend, threshold: float = 7.0) -> None:
        super().__init__(backend)
        self.threshold = threshold

    @classmethod
    def make(cls, setup: Setup) -> Score:
        return cls(
            setup.backend("target"), verifier_registry.parse_number(cls.name, setup.argument)
        )

    def verify(self, inquiry: Inquiry) -> Verdict | Awaitable[Verdict]:
        draft = inquiry.pair.draft
        state = inquiry.state
        return self.ask(inquiry, lambda: rate(state, draft), self._read)

    def _read(self, generation: Generation) -> Verdict:
        said = self.backend.tokenizer.decode(generation.ids).strip()
        if not (said.isascii() and said.isdigit()):
            return Verdict(False, self.name, f"no digit: {said[:20]!r}")
        rating = float(said[0])
        return Verdict(rating >= self.threshold, self.name, said, score=rating)
