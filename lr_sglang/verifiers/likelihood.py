"""Accepts a drafted step by its log-probability on the target, which takes one prefill.

No token is generated, and the target's next branch finds the prefilled step in the cache. The
target's own version is not compared. This is Medusa's typical acceptance (arXiv 2401.10774), for a
step instead of a token.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal

from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.engine.tokenizer import resolve
from lr_sglang.errors import BadReply
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import weigh
from lr_sglang.steps.branch import Generation
from lr_sglang.steps.step import Verdict
from lr_sglang.verifiers import verifier_registry
from lr_sglang.verifiers.asking import Asking
from lr_sglang.verifiers.verifier_registry import Setup


class Likelihood(Asking):
    """Accepts a step whose tokens' log-probability is at least ``threshold``.

    Args:
        how: the mean or the minimum over the step's tokens.
    """

    name = "likelihood"

    def __init__(
        self, backend: RuntimeBackend, threshold: float, how: Literal["mean", "min"] = "mean"
    ) -> None:
        super().__init__(backend)
        self.threshold = threshold
        self.how = how

    @classmethod
    def make(cls, setup: Setup) -> Likelihood:
        return cls(setup.backend("target"), *verifier_registry.likelihood(setup.argument))

    def verify(self, inquiry: Inquiry) -> Verdict | Awaitable[Verdict]:
        draft = inquiry.pair.draft
        state = inquiry.state
        tokens = len(resolve(draft.tokens(), self.backend.tokenizer))
        own = draft.vocabulary == self.backend.tokenizer.vocabulary
        # the target has no token for an end of another vocabulary
        if tokens == 0 or (draft.final and not own):
            return Verdict(False, self.name, "its end cannot be weighed")

        def read(generation: Generation) -> Verdict:
            if len(generation.logprobs) != tokens:
                raise BadReply(
                    "the runtime gave no log-probabilities of the prompt", role=self.backend.role
                )
            each = generation.logprobs
            score = min(each) if self.how == "min" else sum(each) / tokens
            return Verdict(
                score >= self.threshold,
                self.name,
                f"{self.how} log-probability {score:.3f}",
                score=score,
            )

        return self.ask(inquiry, lambda: weigh(state, draft.tokens()), read)
