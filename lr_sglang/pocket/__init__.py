"""Pocket models: a tiny target, draft and judge in this package, trained by ``tools/pocket``."""

from __future__ import annotations

from pathlib import Path

MAIN_MODELS = ("target", "draft", "judge")
# Drafts with less training: about 60 and 40 % of their steps are accepted.
WEAK_DRAFTS = ("draft-60", "draft-40")
# Models that think before they answer, and call a tool.
THINKING = ("target-thinks", "draft-thinks")
# A draft that says the same as the target in other words: few of its tokens are the target's.
OTHER_WORDS = "draft-words"
# The target for it: writes as the target does, and understands steps in those words.
KNOWS_OTHER_WORDS = "target-words"
# A target of Qwen3.5's architecture: three layers of Gated DeltaNet to one of attention.
HYBRID = "target-hybrid"
MODELS = (*MAIN_MODELS, *WEAK_DRAFTS, *THINKING, OTHER_WORDS, HYBRID, KNOWS_OTHER_WORDS)
WEIGHTS = Path(__file__).parent / "weights"


def weights(model: str) -> Path:
    """The folder of a pocket model (one of ``MODELS``), in Hugging Face format."""
    if model not in MODELS:
        raise ValueError(f"no pocket model {model!r}; there are {', '.join(MODELS)}")
    return WEIGHTS / model
