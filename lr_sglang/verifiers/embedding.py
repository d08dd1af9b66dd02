"""The cosine of the two versions' sentence embeddings (paper section 4.3: all-mpnet-base-v2, .85
and .95).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import lru_cache
from typing import Any, Protocol

from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.engine.loop import in_thread
from lr_sglang.errors import BadReply, ConfigError
from lr_sglang.steps.tree import Verdict
from lr_sglang.verifiers import verifier_registry
from lr_sglang.verifiers.setup import Setup


class Encoder(Protocol):
    """The method of a sentence-transformers model that is used."""

    def encode(self, sentences: list[str]) -> Any:
        """One vector for each sentence."""


class Embedding:
    """Accepts a cosine of at least ``threshold``.

    A thread encodes all waiting pairs as one batch, because the model would block the event loop.
    """

    name = "embedding"

    def __init__(self, encoder: Encoder, threshold: float = 0.95) -> None:
        self.encoder, self.threshold = encoder, threshold
        self._waiting: list[tuple[asyncio.Future[float], str, str]] = []
        self._working = False

    @classmethod
    def make(cls, setup: Setup) -> Embedding:
        threshold, model = verifier_registry.embedding(setup.argument)
        return cls(load(model), threshold)

    def verify(self, inquiry: Inquiry) -> Verdict | Awaitable[Verdict]:
        target, draft = inquiry.pair.target.text.strip(), inquiry.pair.draft.text.strip()
        return (
            Verdict(True, "identical", score=1.0)
            if target == draft
            else self._verify(target, draft)
        )

    async def _verify(self, target: str, draft: str) -> Verdict:
        cosine: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((cosine, target, draft))
        if not self._working:
            self._working = True
            self._task = asyncio.create_task(self._work())
        try:
            found = await cosine
        except BadReply as error:
            return Verdict(False, self.name, str(error), failed=True)
        return Verdict(found >= self.threshold, self.name, f"cosine {found:.3f}", score=found)

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                wanted = [one for one in batch if not one[0].done()]  # the others were cancelled
                if wanted:
                    await self._encode(wanted)
        finally:
            self._working = False

    async def _encode(self, batch: list[tuple[asyncio.Future[float], str, str]]) -> None:
        pairs = [(target, draft) for _, target, draft in batch]
        try:
            cosines = await in_thread(lambda: self._cosines(pairs), "lr-embedding")
        except Exception as error:  # noqa: BLE001 - raised where the verdicts are awaited
            failure = BadReply(f"the embedding model failed: {error!r}")
            for cosine, _, _ in batch:
                if not cosine.done():
                    cosine.set_exception(failure)
            return
        for (cosine, _, _), value in zip(batch, cosines, strict=True):
            if not cosine.done():
                cosine.set_result(value)

    def _cosines(self, pairs: list[tuple[str, str]]) -> list[float]:
        import numpy as np

        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        vectors = np.asarray(self.encoder.encode(texts), dtype=float)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        row = {text: vectors[i] for i, text in enumerate(texts)}
        return [float(row[a] @ row[b]) for a, b in pairs]


@lru_cache(maxsize=2)
def load(model: str) -> Encoder:
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
        logging.getLogger("sentence_transformers").setLevel(
            logging.WARNING
        )  # at INFO it shows progress bars
        encoder: Encoder = SentenceTransformer(model)
        return encoder
    except (OSError, ValueError) as error:
        hint, why = (
            "give the folder of one: --verifier embedding:0.95:FOLDER",
            str(error).partition("\n")[0],
        )
        raise ConfigError(f"no embedding model at {model!r}: {why}", hint=hint) from error
