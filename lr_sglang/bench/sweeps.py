"""What ``--sweep`` varies: a point has a value for each setting, and what a mode has no use for is left out of it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lr_sglang.errors import ConfigError
from lr_sglang.modes import MODES

Point = Mapping[str, Any]
Values = list[Point]

MOST = 64  # values of one setting
_SPAN = re.compile(r"(\d+)\.\.(\d+)")


def _number(least: int) -> Callable[[str, str], int]:
    def convert(name: str, text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ConfigError(f"--sweep {name}: {text!r} is no number from {least}")
        return int(text)

    return convert


def _word(name: str, text: str) -> str:
    return text


def _share(name: str, text: str) -> str:
    try:
        if 0 <= float(text) <= 1:
            return text
    except ValueError:
        pass
    raise ConfigError(f"--sweep {name}: {text!r} is no share between 0 and 1")


def _options(name: str, text: str) -> Point:
    """What options of these names say: ``gate:0.075``, ``width:2+depth:3``, or ``none`` for nothing."""
    found: dict[str, Any] = {}
    for part in () if text == "none" else text.split("+"):
        option, _, value = part.partition(":")
        kind = OPTIONS.get(option)
        if kind is None or not value:
            hint = f"none, or such as gate:0.075, of {', '.join(OPTIONS)}"
            raise ConfigError(f"--sweep {name}: {part!r}", hint=hint)
        try:
            found[option] = kind(value)
        except ValueError:
            raise ConfigError(f"--sweep {name}: {part!r} has no such value") from None
    return found


# Setting -> how its values are read. A budget M is split between steps and tokens: M = k1 x k2 (paper section 3.3).
SETTINGS: Mapping[str, Callable[[str, str], Any]] = {
    "depth": _number(1),
    "width": _number(1),
    "verifier": _word,
    "alpha": _share,
    "concurrency": _number(1),
    "sd-tokens": _number(0),
    "budget": _number(1),
    "option": _options,
}
# What an alternative of ``option`` can set.
OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "gate": float,
    "policy": str,
    "schedule": str,
    "depth": int,
    "width": int,
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
    found = [SETTINGS[name](name, value) for value in dict.fromkeys(_values(values))]
    if not found or len(found) > MOST:
        raise ConfigError(f"--sweep {text}: give 1 to {MOST} values", hint="such as depth=1..8 or width=1,2")
    if name == "budget":
        return [point for budget in found for point in splits(budget)]
    if name == "option":
        return found
    return [{name: value} for value in found]


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
    """What a point's folder is called; empty for one that varies nothing."""
    return clean("_".join(f"{name}-{value}" for name, value in point.items()))


def clean(name: str) -> str:
    """A name that can be a folder's."""
    return re.sub(r"[^\w.+-]+", "-", name).strip(".")
