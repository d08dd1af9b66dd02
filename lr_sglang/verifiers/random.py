"""Accepts a random share of steps and sends no request: for measuring speed at a known acceptance."""

from __future__ import annotations

import hashlib

from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.errors import ConfigError
from lr_sglang.steps.tree import Verdict
from lr_sglang.verifiers import verifier_registry
from lr_sglang.verifiers.setup import Setup


class Random:
    """Accepts with probability ``alpha``, drawn from the two versions' tokens: the same pair, the same verdict."""

    name = "random"

    def __init__(self, alpha: float) -> None:
        if not 0 <= alpha <= 1:
            raise ConfigError(f"random: the acceptance rate must be in [0, 1], not {alpha}")
        self.alpha = alpha

    @classmethod
    def make(cls, setup: Setup) -> Random:
        """With the ``0.6`` of ``random:0.6``."""
        return cls(verifier_registry.number(cls.name, setup.argument))

    def verify(self, inquiry: Inquiry) -> Verdict:
        key = repr((inquiry.pair.target.ids, inquiry.pair.draft.ids)).encode()
        draw = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") / 2**64
        return Verdict(draw < self.alpha, self.name)
