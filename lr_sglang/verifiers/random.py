"""Verifiers that accept a random share of steps, to measure the speed at a known
acceptance rate.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Awaitable

from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.programs.judge import JudgePrompt
from lr_sglang.steps.step import Verdict
from lr_sglang.verifiers import verifier_registry
from lr_sglang.verifiers.judge import Judge
from lr_sglang.verifiers.verifier_registry import Setup


class Random:
    """Accepts with probability ``alpha``, drawn by a hash of both versions, so that equal pairs get
    equal verdicts.
    """

    name = "random"

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    @classmethod
    def make(cls, setup: Setup) -> Random:
        return cls(verifier_registry.parse_number(cls.name, setup.argument))

    def verify(self, inquiry: Inquiry) -> Verdict:
        key = repr((inquiry.pair.target.ids, inquiry.pair.draft.ids)).encode()
        draw = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") / 2**64
        return Verdict(draw < self.alpha, self.name)


class Oracle(Judge):
    """Decides as ``Random`` does, but after a reply of the judge, for models with random weights.

    The token ids of such models decode to almost no text, so the judge reads one letter for each
    token instead.
    """

    name = "oracle"
    reads_words = False

    def __init__(self, backend: RuntimeBackend, prompt: JudgePrompt, alpha: float) -> None:
        super().__init__(backend, prompt)
        self.random = Random(alpha)

    @classmethod
    def make(cls, setup: Setup) -> Oracle:
        return cls(
            setup.backend("judge"),
            setup.prompt(),
            verifier_registry.parse_number(cls.name, setup.argument),
        )

    def verify(self, inquiry: Inquiry) -> Verdict | Awaitable[Verdict]:
        target, draft = (
            " ".join(chr(ord("a") + token % 26) for token in version.ids)
            for version in (inquiry.pair.target, inquiry.pair.draft)
        )
        drawn = dataclasses.replace(self.random.verify(inquiry), by=self.name)
        return self._judge(inquiry, target, draft, lambda _: drawn)
