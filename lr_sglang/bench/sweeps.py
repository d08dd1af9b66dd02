"""What ``--sweep`` varies: a point has a value for each setting, and what a mode has no use for is left out of it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES

Point = Mapping[str, Any]
Values = list[Point]

MOST = 64  # values of one setting
_SPAN = re.compile(r"(\d+)\.\.(\d+)")


def _from(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ValueError(f"a number from {least}")
        return int(text)

    return number


def _share(text: str) -> str:
    with suppress(ValueError):
        if 0 <= float(text) <= 1:
            return text
    raise ValueError("a share between 0 and 1")


def _options(text: str) -> Point:
    """Reads ``gate:0.075``, ``width:2+depth:3``, or ``none`` for no option."""
    pairs = [part.partition(":")[::2] for part in text.split("+")] if text != "none" else []
    if any(name not in OPTIONS or not value for name, value in pairs):
        raise ValueError(f"none, or such as gate:0.075, of {', '.join(OPTIONS)}")
    return {name: OPTIONS[name](value) for name, value in pairs}


# Setting -> how its values are read. A budget M is split between steps and tokens: M = k1 x k2 (paper section 3.3).
SETTINGS: Mapping[str, Callable[[str], Any]] = {
    "depth": _from(1),
    "width": _from(1),
    "verifier": str,
    "alpha": _share,
    "concurrency": _from(1),
    "sd-tokens": _from(0),
    "budget": _from(1),
    "option": _options,
}
# What an alternative of ``option`` can set.
OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "gate": lambda text: float(_share(text)),
    "policy": str,
    "schedule": str,
    "depth": _from(1),
    "width": _from(1),
}
AHEAD = ("verifier", "alpha", *OPTIONS)  # what only lookahead has a use for


def parse(text: str) -> Values:
    """The points of one sweep: ``depth=1..8``, ``width=1,2``, ``sd-tokens=0,2..4``.

    Raises:
        ConfigError: there is no such setting, or it has no such value.
    """
    name, equals, values = text.partition("=")
    name = name.strip()
    if name not in SETTINGS or not equals:
        raise ConfigError(f"--sweep {text}: there is no such setting", hint=f"NAME=VALUES of {', '.join(SETTINGS)}")
    found = [_read(name, value) for value in dict.fromkeys(_values(values))]
    if not found or len(found) > MOST:
        raise ConfigError(f"--sweep {text}: give 1 to {MOST} values", hint="such as depth=1..8 or width=1,2")
    if name == "budget":
        return [point for budget in found for point in splits(budget)]
    if name == "option":
        return found
    return [{name: value} for value in found]


def _read(name: str, text: str) -> Any:
    try:
        return SETTINGS[name](text)
    except ValueError as error:
        raise ConfigError(f"--sweep {name}: {text!r} is no such value", hint=f"give {error}") from None


def _values(text: str) -> Iterable[str]:
    for part in text.split(","):
        if span := _SPAN.fullmatch(part.strip()):
            low, high = int(span[1]), int(span[2])
            yield from map(str, range(low, min(high, low + MOST) + 1))
        elif part.strip():
            yield part.strip()


def splits(budget: int) -> Values:
    """The ways to have ``budget`` tokens of the target in work at once: k1 steps of k2 tokens, k2 a power of two.

    k1 is the depth of the async schedule, k2 - 1 the tokens that the token layer drafts for a verification.
    """
    sizes = [2**n for n in range(budget.bit_length()) if budget % 2**n == 0]
    return [{"depth": budget // k2, "sd-tokens": k2 - 1} for k2 in sizes]


def points(sweeps: Sequence[str]) -> list[Point]:
    """Every combination of the values of all sweeps; one empty point if there is none.

    Raises:
        ConfigError: as ``parse``; or a setting is varied twice.
    """
    parsed = [parse(text) for text in sweeps]
    names = [name for values in parsed for name in {name: None for point in values for name in point}]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"--sweep: {', '.join(twice)} is varied twice", hint="a budget varies depth and sd-tokens")
    if "verifier" in names and "alpha" in names:
        raise ConfigError("--sweep: alpha is a verifier's; leave one of them out")
    return [{key: value for one in chosen for key, value in one.items()} for chosen in itertools.product(*parsed)]


def of_mode(point: Point, mode: str) -> tuple[str, Point]:
    """The mode that a point makes of a mode, and what of the point it has a use for.

    A token layer that drafts nothing is none: ``sd`` is then ``autoregressive``, ``lookahead+sd`` is ``lookahead``.
    """
    plain = {"sd": "autoregressive", "lookahead+sd": "lookahead"}
    mode = plain.get(mode, mode) if point.get("sd-tokens") == 0 else mode
    known = MODES[mode]
    left = dict(point)
    if not known.token_layer:
        left.pop("sd-tokens", None)
    for name in AHEAD:
        if not known.ahead or (known.lossless and name in ("verifier", "alpha")):
            left.pop(name, None)
    return mode, left


def name_of(point: Point) -> str:
    """The name of a point's folder; empty for a point that varies nothing."""
    return clean("_".join(f"{name}-{value}" for name, value in point.items()))


def clean(name: str) -> str:
    """A name without characters that a folder's name cannot have."""
    return re.sub(r"[^\w.+-]+", "-", name).strip(".")
