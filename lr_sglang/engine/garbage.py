"""Garbage collection in a process that has imported SGLang and answers many requests."""

from __future__ import annotations

import gc
from functools import cache


@cache
def keep_what_is_imported() -> None:
    """Excludes all present objects from garbage collection, and makes it rarer.

    SGLang brings a million objects; a collection of them stops every answer for half a second. An answer leaves no
    cycles, and with Python's own threshold a busy process spent a third of its time collecting.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
