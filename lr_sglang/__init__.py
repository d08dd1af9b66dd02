"""Lookahead Reasoning on SGLang.

The names below are the way in from Python; each is imported when it is first used, because SGLang takes seconds.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {  # module, and the name there if it is another
    "Event": "lr_sglang.events",
    "Job": "lr_sglang.job",
    "Limits": "lr_sglang.config",
    "Lookahead": "lr_sglang.config",
    "LookaheadBackend": "lr_sglang.frontend",
    "LookaheadError": "lr_sglang.errors",
    "Sampling": "lr_sglang.config",
    "Setup": "lr_sglang.verifiers:Setup",
    "Solution": "lr_sglang.solution",
    "Trace": "lr_sglang.trace",
    "asolve": "lr_sglang.api",
    "converse": "lr_sglang.dsl",
    "deployed": "lr_sglang.connect",
    "deployment": "lr_sglang.live",
    "fork": "lr_sglang.dsl",
    "load_deployment": "lr_sglang.runtimes",
    "lookahead": "lr_sglang.ahead",
    "make_verifier": "lr_sglang.verifiers:make",
    "solve": "lr_sglang.api",
    "solve_many": "lr_sglang.api",
    "run_program": "lr_sglang.engine.run",
    "step": "lr_sglang.dsl",
    "stream": "lr_sglang.api",
    "sync": "lr_sglang.dsl",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = _HOME[name].partition(":")
    return getattr(importlib.import_module(module), there or name)


def __dir__() -> list[str]:
    return __all__
