"""Whether a program's output, or what a function returned, is what a test expects."""

from __future__ import annotations

import decimal
import json
from typing import Any


def same_output(written: str, expected: str) -> bool:
    """Line by line, without spaces at the ends; numbers by value."""
    ours, theirs = (
        [line.strip() for line in text.strip().splitlines()] for text in (written, expected)
    )
    return len(ours) == len(theirs) and all(
        same_line(a, b) for a, b in zip(ours, theirs, strict=True)
    )


def same_line(one: str, other: str) -> bool:
    """Whether two lines are equal, as text or number by number."""
    if one == other:
        return True
    try:
        return [decimal.Decimal(part) for part in one.split()] == [
            decimal.Decimal(part) for part in other.split()
        ]
    except (decimal.InvalidOperation, ValueError):
        return False


def same_value(reported: bytes, expected: Any) -> bool | None:
    """Whether JSON has the expected value; None if it cannot be read."""
    try:
        return bool(json.loads(reported) == expected)
    except (ValueError, RecursionError):
        return None
