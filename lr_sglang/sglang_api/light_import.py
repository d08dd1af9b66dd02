"""SGLang's frontend and transformers' tokenizers without torch: a command asks its question seconds sooner.

Neither needs torch, but both import it, and much that is built on it, for models that other processes run.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

# It mends transformers' models for SGLang's servers, and nothing of the tokenizers that come with transformers.
_PATCHES = "sglang.srt.utils.hf_transformers_patches"


def leave_torch_out() -> None:
    """Imports both, for good: to transformers no torch is installed in this process any more.

    Only for a process whose code is all ours, and which runs no model. Does nothing where either is imported already.
    """
    if "transformers" in sys.modules or "sglang" in sys.modules:
        return
    from transformers import utils

    for module in (utils, utils.import_utils):
        module.is_torch_available = _no
    stand_in = ModuleType(_PATCHES)
    stand_in.apply_all = _nothing  # type: ignore[attr-defined]
    sys.modules[_PATCHES] = stand_in
    try:
        import sglang  # noqa: F401
    finally:
        del sys.modules[_PATCHES]


def call_without_torch(module: str, name: str, *arguments: Any) -> None:
    """Calls a function by its name: what a new process begins with, before it imports the function's module."""
    leave_torch_out()
    getattr(import_module(module), name)(*arguments)


def _no() -> bool:
    return False


def _nothing() -> None:
    pass
