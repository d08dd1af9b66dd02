"""Lookahead Reasoning on SGLang.

The names below are the Python API; each is imported at its first use, because importing SGLang
takes seconds.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_HOME = {  # name -> module, with the name there if it differs
    "AnswerRequest": "lr_sglang.algorithm.answer_request",
    "Event": "lr_sglang.steps.trace",
    "Inquiry": "lr_sglang.algorithm.inquiry",
    "Limits": "lr_sglang.config",
    "Lookahead": "lr_sglang.config",
    "LookaheadBackend": "lr_sglang.user_programs.lookahead_backend",
    "LookaheadError": "lr_sglang.errors",
    "Sampling": "lr_sglang.config",
    "Setup": "lr_sglang.verifiers",
    "Solution": "lr_sglang.api.solve",
    "Trace": "lr_sglang.steps.trace",
    "Verdict": "lr_sglang.steps.step",
    "Verifier": "lr_sglang.algorithm.inquiry",
    "ask": "lr_sglang.algorithm.inquiry",
    "asolve": "lr_sglang.api.solve",
    "confidence": "lr_sglang.frontend.dsl",
    "converse": "lr_sglang.frontend.dsl",
    "deployed": "lr_sglang.runtimes.connect",
    "deployment": "lr_sglang.api.solve",
    "entropy": "lr_sglang.frontend.dsl",
    "fork": "lr_sglang.frontend.dsl",
    "load_deployment": "lr_sglang.runtimes",
    "lookahead": "lr_sglang.frontend.gen_options",
    "make_verifier": "lr_sglang.verifiers",
    "reward": "lr_sglang.frontend.dsl",
    "run_program": "lr_sglang.frontend.dsl",
    "solve": "lr_sglang.api.solve",
    "step": "lr_sglang.frontend.dsl",
    "stream": "lr_sglang.api.solve",
    "sync": "lr_sglang.frontend.dsl",
    "weigh": "lr_sglang.frontend.dsl",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = _HOME[name].partition(":")
    return getattr(importlib.import_module(module), there or name)


def __dir__() -> list[str]:
    return __all__
