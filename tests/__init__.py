"""Tests. With LR_SGLANG_FULL=1 (make test-full) properties are tried on more examples, and every
case of a grid.
"""

import itertools
import os
from collections.abc import Iterable
from typing import Any

FULL = os.environ.get("LR_SGLANG_FULL") == "1"


def examples(few: int) -> int:
    """``few``, or ten times as many in the full run."""
    return few * 10 if FULL else few


def grid(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Every combination of the values of some parameters, one of which has three or more values; in
    a short run a third of them, in which every value occurs.
    """
    values = [list(axis) for axis in axes]
    places = itertools.product(*(range(len(axis)) for axis in values))
    chosen = [place for place in places if FULL or sum(place) % 3 == 0]
    assert [len({place[n] for place in chosen}) for n in range(len(values))] == [
        len(axis) for axis in values
    ]
    return [
        tuple(axis[number] for axis, number in zip(values, place, strict=True)) for place in chosen
    ]
