"""The points of ``--sweep``: a point has a value for each setting; a mode ignores those that it
does not use.
"""

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

MOST = 64  # maximum number of values of one setting
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


# Of lookahead: setting -> parser of its values.
AHEAD: Mapping[str, Callable[[str], Any]] = {
    "depth": _from(1),
    "width": _from(1),
    "verifier": str,
    "gate": lambda text: float(_share(text)),
    "policy": str,
    "schedule": str,
}
SETTINGS: Mapping[str, Callable[[str], Any]] = {
    **AHEAD,
    "alpha": _share,
    "concurrency": _from(1),
    "sd-tokens": _from(0),
}


def parse(text: str) -> Values:
    """The points of one sweep: ``depth=1..8``, ``width=1,2``, ``sd-tokens=0,2..4``.

    Raises:
        ConfigError: there is no such setting, or a value is invalid.
    """
    name, equals, values = text.partition("=")
    name = name.strip()
    if name not in SETTINGS or not equals:
        raise ConfigError(
            f"--sweep {text}: there is no such setting",
            hint=f"NAME=VALUES of {', '.join(SETTINGS)}",
        )
    found = [_read(name, value) for value in dict.fromkeys(_values(values))]
    if not found or len(found) > MOST:
        raise ConfigError(
            f"--sweep {text}: give 1 to {MOST} values", hint="such as depth=1..8 or width=1,2"
        )
    return [{name: value} for value in found]


def _read(name: str, text: str) -> Any:
    try:
        return SETTINGS[name](text)
    except ValueError as error:
        raise ConfigError(
            f"--sweep {name}: {text!r} is no such value", hint=f"give {error}"
        ) from None


def _values(text: str) -> Iterable[str]:
    for part in text.split(","):
        if span := _SPAN.fullmatch(part.strip()):
            low, high = int(span[1]), int(span[2])
            yield from map(str, range(low, min(high, low + MOST) + 1))
        elif part.strip():
            yield part.strip()


def points(sweeps: Sequence[str]) -> list[Point]:
    """Every combination of the values of all sweeps; one empty point if there is none.

    Raises:
        ConfigError: as ``parse``, or two sweeps vary the same setting.
    """
    parsed = [parse(text) for text in sweeps]
    names = [name for values in parsed for name in values[0]]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"--sweep: {', '.join(twice)} is varied twice")
    if "verifier" in names and "alpha" in names:
        raise ConfigError("--sweep: alpha is a verifier's; leave one of them out")
    return [
        {key: value for one in chosen for key, value in one.items()}
        for chosen in itertools.product(*parsed)
    ]


def of_mode(point: Point, mode: str) -> tuple[str, Point]:
    """The mode that results from a mode at a point, and the values of the point that it uses.

    With 0 drafted tokens there is no token layer: ``sd`` becomes ``autoregressive``,
    ``lookahead+sd`` ``lookahead``.
    """
    plain = {"sd": "autoregressive", "lookahead+sd": "lookahead"}
    mode = plain.get(mode, mode) if point.get("sd-tokens") == 0 else mode
    known = MODES[mode]
    left = dict(point)
    if not known.token_layer:
        left.pop("sd-tokens", None)
    for name in (*AHEAD, "alpha"):
        if not known.ahead or (known.lossless and name in ("verifier", "alpha")):
            left.pop(name, None)
    return mode, left


def name_of(point: Point) -> str:
    """The name of a point's folder; empty for a point without values."""
    return clean("_".join(f"{name}-{value}" for name, value in point.items()))


def clean(name: str) -> str:
    """A name without characters that a folder's name cannot have."""
    return re.sub(r"[^\w.+-]+", "-", name).strip(".")
