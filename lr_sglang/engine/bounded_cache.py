"""A cache of a function's latest results, limited by their total weight: fewer long prompts than short ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
EACH = 64  # minimum weight of an entry


class Memo(Generic[T]):
    """A function with a memory. Thread-safe; the function is called without a lock held.

    Args:
        function: of hashable arguments.
        weight: of a result and its arguments, such as their tokens.
        most: total weight of the results that are kept. The latest one is always kept.
    """

    def __init__(self, function: Callable[..., T], weight: Callable[..., int], most: int) -> None:
        self._function, self._weigh, self._most = function, weight, most
        self._kept: OrderedDict[tuple[Hashable, ...], tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.weight = 0

    def __call__(self, *given: Any) -> T:
        with self._lock:
            if found := self._kept.get(given):
                self._kept.move_to_end(given)
                return found[0]
        result = self._function(*given)
        weight = EACH + self._weigh(result, *given)
        with self._lock:
            if given not in self._kept:
                self._kept[given] = result, weight
                self.weight += weight
            while self.weight > self._most and len(self._kept) > 1:
                self.weight -= self._kept.popitem(last=False)[1][1]
        return result
