"""JSON as any other program reads it: UTF-8, without NaN, and without half surrogates, which names
of files may have.
"""

from __future__ import annotations

import json
from typing import Any


def dumped(value: Any, **how: Any) -> bytes:
    """A value as JSON. Numbers that are not finite become null, half surrogates question marks.

    Args:
        how: keywords of ``json.dumps``.
    """
    how["ensure_ascii"] = False
    try:
        text = json.dumps(value, **how, allow_nan=False)
    except ValueError:
        plain = json.loads(json.dumps(value, **how), parse_constant=lambda _: None)
        text = json.dumps(plain, **how)
    return text.encode("utf-8", "replace")
