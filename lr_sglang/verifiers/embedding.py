"""The cosine of the two versions' sentence embeddings (paper section 4.3: all-mpnet-base-v2, .85
and .95).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Protocol

from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.errors import ConfigError
from lr_sglang.steps.step import Verdict
from lr_sglang.verifiers import verifier_registry
from lr_sglang.verifiers.verifier_registry import Setup


class Encoder(Protocol):
    """The method of a sentence-transformers model that is used."""

    def encode(self, sentences: list[str]) -> Any:
        """One vector for each sentence."""


class Embedding:
    """Accepts a cosine of at least ``threshold``.

    A thread encodes one pair after the other, because the model would block the event loop.
    """

    name = "embedding"

    def __init__(self, encoder: Encoder, threshold: float = 0.95) -> None:
        self.encoder = encoder
        self.threshold = threshold
        self._thread = ThreadPoolExecutor(1, "lr-embedding")

    @classmethod
    def make(cls, setup: Setup) -> Embedding:
        threshold, model = verifier_registry.embedding(setup.argument)
        return cls(load_encoder(model), threshold)

    def verify(self, inquiry: Inquiry) -> Verdict | Awaitable[Verdict]:
        target = inquiry.pair.target.text.strip()
        draft = inquiry.pair.draft.text.strip()
        return (
            Verdict(True, "identical", score=1.0)
            if target == draft
            else self._verify(target, draft)
        )

    async def _verify(self, target: str, draft: str) -> Verdict:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._cosine, target, draft)
        except Exception as error:  # noqa: BLE001 - a failed verdict costs time and changes no answer
            return Verdict(False, self.name, f"the embedding model failed: {error!r}", failed=True)
        return Verdict(found >= self.threshold, self.name, f"cosine {found:.3f}", score=found)

    def _cosine(self, target: str, draft: str) -> float:
        import numpy as np

        one, other = np.asarray(self.encoder.encode([target, draft]), dtype=float)
        return float(one @ other / max(np.linalg.norm(one) * np.linalg.norm(other), 1e-12))


@lru_cache(maxsize=2)
def load_encoder(model: str) -> Encoder:
    """The model at a path or hub name.

    Raises:
        SetupError: sentence-transformers is not installed.
        ConfigError: there is no such model.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise verifier_registry.no_embedding() from error
    try:
        # at INFO it shows progress bars
        logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
        encoder: Encoder = SentenceTransformer(model)
        return encoder
    except (OSError, ValueError) as error:
        hint = "give the folder of one: --verifier embedding:0.95:FOLDER"
        why = str(error).partition("\n")[0]
        raise ConfigError(f"no embedding model at {model!r}: {why}", hint=hint) from error
