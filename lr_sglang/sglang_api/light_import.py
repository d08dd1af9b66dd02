"""Imports SGLang's frontend and transformers' tokenizers without torch, which saves a command
several seconds.

Neither needs torch, but both import it, with many modules that use it, for models that other
processes run.
"""

from __future__ import annotations

import sys
from types import ModuleType

# This module patches transformers' models for SGLang's servers; it does not affect transformers'
# tokenizers.
_PATCHES = "sglang.srt.utils.hf_transformers_patches"


def leave_torch_out() -> None:
    """Imports both; from then on, transformers in this process assumes that torch is not installed.

    Only for a process that runs only our own code and no model. Does nothing if either is imported
    already.
    """
    if "transformers" in sys.modules or "sglang" in sys.modules:
        return
    from transformers import utils

    for module in (utils, utils.import_utils):
        module.is_torch_available = lambda: False
    stand_in = ModuleType(_PATCHES)
    stand_in.apply_all = lambda: None  # type: ignore[attr-defined]
    sys.modules[_PATCHES] = stand_in
    try:
        import sglang  # noqa: F401
    finally:
        del sys.modules[_PATCHES]
