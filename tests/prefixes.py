"""What a server has computed, and need not compute again."""

from collections.abc import Sequence


class PrefixCache:
    """The prefixes that a server has computed."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def add(self, ids: Sequence[int]) -> None:
        """Adds a text with all of its prefixes."""
        self._known.update(_hashes(ids))

    def longest(self, ids: Sequence[int]) -> int:
        """Tokens of the longest known prefix."""
        hashes = _hashes(ids)
        low, high = 0, len(hashes)
        while low < high:  # with a prefix all shorter ones are known
            middle = (low + high + 1) // 2
            low, high = (middle, high) if hashes[middle - 1] in self._known else (low, middle - 1)
        return low

    def clear(self) -> None:
        self._known.clear()


def _hashes(ids: Sequence[int]) -> list[int]:
    found, last = [], 0
    for one in ids:
        last = hash((last, one))
        found.append(last)
    return found
