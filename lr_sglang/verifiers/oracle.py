"""Decides as ``random`` does, after asking the judge all the same: the acceptance is given, the time is the judge's."""

from __future__ import annotations

from collections.abc import Awaitable

from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.programs.judge import JudgePrompt, judge
from lr_sglang.steps.tree import Verdict
from lr_sglang.verifiers import verifier_registry
from lr_sglang.verifiers.asking import Asking
from lr_sglang.verifiers.random import Random
from lr_sglang.verifiers.setup import Setup


class Oracle:
    """For models of random weights: the judge's verdicts mean nothing, but the time that they take does.

    Token ids of such models are mostly no text. The judge reads one word for each token instead.
    """

    name = "oracle"
    reads_words = False

    def __init__(self, backend: RuntimeBackend, prompt: JudgePrompt, alpha: float) -> None:
        self.backend, self.prompt, self.random = backend, prompt, Random(alpha)
        self._asking = Asking(self.name)

    @classmethod
    def make(cls, setup: Setup) -> Oracle:
        """With the ``0.6`` of ``oracle:0.6``."""
        alpha = verifier_registry.number(cls.name, setup.argument or "0.5", 0.0, 1.0, "oracle:0.6")
        return cls(setup.backend("judge"), setup.prompt(), alpha)

    def verify(self, inquiry: Inquiry) -> Verdict | Awaitable[Verdict]:
        target, draft = (_words(ids) for ids in (inquiry.pair.target.ids, inquiry.pair.draft.ids))
        drawn = self.random.verify(inquiry)
        return self._asking.ask(
            inquiry,
            lambda: judge.run(target, draft, self.prompt, backend=self.backend),
            lambda generation: Verdict(drawn.accepted, self.name),
        )


def _words(ids: tuple[int, ...]) -> str:
    return " ".join(chr(ord("a") + token % 26) for token in ids)
