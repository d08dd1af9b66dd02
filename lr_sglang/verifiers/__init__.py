"""Verifiers, which decide whether two versions of a step agree, one per file (docs/verifiers.md).

The names below are imported at their first use, because commands that do not import SGLang use
``verifier_registry``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lr_sglang.verifiers.factory import make
    from lr_sglang.verifiers.setup import Setup

__all__ = [
    "Cascade",
    "Embedding",
    "Exact",
    "Judge",
    "Likelihood",
    "Oracle",
    "Random",
    "Score",
    "Setup",
    "make",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.factory"), name)
