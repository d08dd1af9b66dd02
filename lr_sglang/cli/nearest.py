"""The nearest of known names to one that was misspelt, for "did you mean"."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

ALIKE = 0.65  # of 1; what options share by their form alone, as two dashes, is not looked at


def nearest(name: str, known: Iterable[str], common: str = "") -> list[str]:
    """The names most like it, best first; none where nothing is.

    Args:
        common: what all of them begin with, which makes any two look alike.
    """
    bare = {one.removeprefix(common).lower(): one for one in known}
    return [bare[one] for one in get_close_matches(name.removeprefix(common).lower(), bare, cutoff=ALIKE)]
