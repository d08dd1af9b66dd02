"""Records that take little room: a run of the paper's size has tens of thousands, of up to a megabyte each."""

from __future__ import annotations

import json
import zlib
from collections import UserDict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

# What is long, and looked at seldom: compressed JSON (``bytes``) until then.
_LONG = ("question", "extra", "text", "steps", "branches", "program")
# What is the same in most records of a run: kept once.
_SHARED = ("config", "versions")


class Packed(UserDict[str, Any]):
    """A record, to be read as any other; what is in it must not be changed, but fields may be set anew.

    An answer of 1,000 branches takes 0.09 MB in place of 1.4 MB.

    Attributes:
        steps: their number, for which they need not be unpacked.
    """

    steps = 0

    def __setitem__(self, name: str, value: Any) -> None:
        packed = isinstance(value, bytes)
        if name == "steps":
            self.steps = len(_unpacked(value) if packed else value)
        if name in _LONG and not packed:
            value = zlib.compress(json.dumps(value).encode(), level=1)
        elif name in _SHARED:
            value = _only(json.dumps(value))
        self.data[name] = value

    def __getitem__(self, name: str) -> Any:
        value = self.data[name]
        return _unpacked(value) if isinstance(value, bytes) else value


def steps(record: Mapping[str, Any]) -> int:
    """How many steps a record has, packed or not."""
    return record.steps if isinstance(record, Packed) else len(record["steps"])


@lru_cache(maxsize=8)  # a field that was read is soon read again
def _unpacked(value: bytes) -> Any:
    return json.loads(zlib.decompress(value))


_only = lru_cache(maxsize=1024)(json.loads)
