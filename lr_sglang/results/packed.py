"""Records in little memory: a run of the paper's size has tens of thousands, of up to a megabyte
each.
"""

from __future__ import annotations

import json
import zlib
from collections import UserDict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

# Long fields that are rarely read: kept as compressed JSON (``bytes``).
_LONG = ("question", "extra", "text", "steps", "branches", "program")
# Fields that are the same in most records of a run: kept once.
_SHARED = ("config", "versions")


class Packed(UserDict[str, Any]):
    """A record that is read like any other. Fields may be replaced, but their values must not be
    changed in place.

    An answer of 1,000 branches takes 0.09 MB in place of 1.4 MB.

    Attributes:
        steps: the number of steps, known without unpacking them.
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


@lru_cache(maxsize=8)  # the same field is often read several times in a row
def _unpacked(value: bytes) -> Any:
    return json.loads(zlib.decompress(value))


_only = lru_cache(maxsize=1024)(json.loads)
