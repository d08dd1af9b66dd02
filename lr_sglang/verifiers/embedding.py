"""The cosine of the two versions' sentence embeddings (paper section 4.3: all-mpnet-base-v2, .85 and .95)."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any, Protocol

from lr_sglang import verifier_names
from lr_sglang.call import Call
from lr_sglang.dsl import Inquiry
from lr_sglang.errors import BadReply, Cancelled, ConfigError, SetupError
from lr_sglang.tree import Verdict
from lr_sglang.verifiers.setup import Setup


class Encoder(Protocol):
    """What is needed of a sentence-transformers model."""

    def encode(self, sentences: list[str]) -> Any:
        """One vector for each."""


class Embedding:
    """Accepts a cosine of at least ``threshold``.

    One thread encodes whatever is waiting as one batch; there is none while nothing is.
    """

    name = "embedding"

    def __init__(self, encoder: Encoder, threshold: float = 0.95) -> None:
        self.encoder, self.threshold = encoder, threshold
        self._waiting: list[tuple[Call, str, str]] = []
        self._working = False
        self._lock = threading.Lock()

    @classmethod
    def make(cls, setup: Setup) -> Embedding:
        threshold, model = verifier_names.embedding(setup.argument)
        return cls(load(model), threshold)

    def verify(self, inquiry: Inquiry) -> Verdict | None:
        target, draft = inquiry.pair.target.text.strip(), inquiry.pair.draft.text.strip()
        if target == draft:
            return Verdict(True, "identical", score=1.0)

        def heard(result: Any) -> None:
            if isinstance(result, float):
                verdict = Verdict(result >= self.threshold, self.name, f"cosine {result:.3f}", score=result)
            else:
                verdict = Verdict(False, self.name, str(result), failed=True)
            inquiry.reply(verdict)

        with self._lock:
            self._waiting.append((inquiry.begin(heard), target, draft))
            if not self._working:
                self._working = True
                threading.Thread(target=self._work, name="lr-embedding", daemon=True).start()
        return None

    def _work(self) -> None:
        while True:
            with self._lock:
                batch, self._waiting = self._waiting, []
                if not batch:
                    self._working = False
                    return
            wanted = [one for one in batch if not one[0].cancelled]
            for call in (one[0] for one in batch if one not in wanted):
                call.end(Cancelled("cancelled"))
            if wanted:
                self._encode(wanted)

    def _encode(self, batch: list[tuple[Call, str, str]]) -> None:
        try:
            cosines = self._cosines([(target, draft) for _, target, draft in batch])
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for these verdicts
            for call, _, _ in batch:
                call.end(BadReply(f"the embedding model failed: {error!r}"))
            return
        for (call, _, _), cosine in zip(batch, cosines, strict=True):
            call.end(cosine)

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
        hint = "pip install 'lr-sglang[embedding]', or take another verifier"
        raise SetupError("the embedding verifier needs the package sentence-transformers", hint=hint) from error
    try:
        return _Quiet(SentenceTransformer(model))
    except (OSError, ValueError) as error:
        hint, why = "give the folder of one: --verifier embedding:0.95:FOLDER", str(error).partition("\n")[0]
        raise ConfigError(f"no embedding model at {model!r}: {why}", hint=hint) from error


class _Quiet:
    """A model that shows no progress."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def encode(self, sentences: list[str]) -> Any:
        return self._model.encode(sentences, show_progress_bar=False)
