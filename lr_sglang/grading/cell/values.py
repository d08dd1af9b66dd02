"""Values as JSON between a function under test and the process of its tests, which so receives
plain data only.

An object of the answer's own class, which could define ``__eq__``, cannot be sent.
"""

from __future__ import annotations

import importlib
from typing import Any

PLAIN = (bool, int, float, str)
GROUPS: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "iterator": iter,
    "dict": dict,
    "bytes": bytes,
    "complex": lambda parts: complex(*parts),
    "Fraction": lambda parts: importlib.import_module("fractions").Fraction(
        *parts
    ),  # rare, and slow to import
    "Decimal": lambda parts: importlib.import_module("decimal").Decimal(*parts),
}


def pack(value: Any) -> Any:
    """For ``json.dumps``.

    Raises:
        TypeError: it has none of the types above.
    """
    if value is None or type(value) in PLAIN:
        return value
    for kind in PLAIN:
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, dict):
        return {"dict": [[pack(key), pack(part)] for key, part in value.items()]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if type(value).__name__ in ("Fraction", "Decimal"):
        return {type(value).__name__: [str(value)]}
    for name in ("list", "tuple", "set", "frozenset", "bytes"):
        if isinstance(value, GROUPS[name]):
            return {name: [pack(part) for part in value]}
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of numpy
        return pack(value.item())
    if hasattr(value, "__next__"):
        return {"iterator": [pack(part) for part in value]}
    raise TypeError(f"a value of type {type(value).__name__} cannot be compared")


def unpack(value: Any) -> Any:
    """The value of ``pack``.

    Raises:
        ValueError: it was not made by ``pack``.
    """
    if not isinstance(value, (dict, list)):
        return value
    try:
        name, parts = next(iter(value.items()))  # type: ignore[union-attr]
        if name == "dict":
            return {unpack(key): unpack(part) for key, part in parts}
        return GROUPS[name]([unpack(part) for part in parts])
    except (AttributeError, LookupError, TypeError, ArithmeticError, StopIteration) as error:
        raise ValueError(f"not a packed value ({error!r})") from error
