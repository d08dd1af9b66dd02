"""Who decides whether two versions of a step agree. One file each; ``make`` finds them by name (docs/verifiers.md).

The names below are imported when they are first used: ``verifier_registry`` is read by commands that import no SGLang.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lr_sglang.verifiers.factory import make
    from lr_sglang.verifiers.setup import Setup

__all__ = ["Cascade", "Embedding", "Exact", "Judge", "Likelihood", "Oracle", "Random", "Score", "Setup", "make"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.factory"), name)
