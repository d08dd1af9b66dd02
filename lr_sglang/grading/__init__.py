"""Grading: whether an answer is right, by the kind of its task.

The names below are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Grade": "grade",
    "Grader": "grader",
    "Limits": "sandbox",
    "Rater": "rater",
    "Rules": "grader",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
