"""Tests. ``examples(n)`` is how many examples a property is tried on: more with LR_SGLANG_FULL=1 (make test-full)."""

import os

FULL = os.environ.get("LR_SGLANG_FULL") == "1"


def examples(few: int) -> int:
    """``few``, or ten times as many in the full run."""
    return few * 10 if FULL else few
