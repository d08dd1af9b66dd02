"""Lookahead Reasoning on SGLang.

The names below are the way in from Python; each is imported when it is first used, because SGLang takes seconds.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {  # module, and the name there if it is another
    "Job": "lr_sglang.job",
    "Limits": "lr_sglang.config",
    "Lookahead": "lr_sglang.config",
    "LookaheadError": "lr_sglang.errors",
    "Sampling": "lr_sglang.config",
    "Trace": "lr_sglang.trace",
    "autoregressive": "lr_sglang.programs.autoregressive",
    "deployed": "lr_sglang.connect",
    "load_deployment": "lr_sglang.runtimes",
    "lookahead": "lr_sglang.programs.lookahead",
    "make_verifier": "lr_sglang.verifiers:make",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = _HOME[name].partition(":")
    return getattr(importlib.import_module(module), there or name)
