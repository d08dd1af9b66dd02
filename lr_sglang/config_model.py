"""Frozen dataclasses that are read from tables of keys and check their values."""

from __future__ import annotations

import dataclasses
import numbers
import types
import typing
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Literal, Self

from lr_sglang.errors import ConfigError, did_you_mean

# The names of types in error messages.
NAMES = {
    tuple: "a list",
    dict: "a table",
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
}


class ConfigModel:
    """A frozen dataclass that is read from a table of keys and checks them.

    ``SHORT`` is the field whose value may replace the whole table. ``_RENAMED`` maps former names
    of fields, which are accepted with a warning; ``_REMOVED`` has names that are refused.
    """

    SHORT: ClassVar[str] = ""
    _RENAMED: ClassVar[dict[str, str]] = {}
    _REMOVED: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Checks the types of the fields, and converts integers to floats and lists to tuples where
        declared.

        Raises:
            ConfigError: a wrong type, or a value that is not among the permitted ones.
        """
        for name, kind in _kinds(typing.cast(Any, type(self))).items():
            given = getattr(self, name)
            value = _coerce(given, kind, f"{type(self).__name__.lower()}.{name}")
            if value is not given:
                object.__setattr__(self, name, value)

    @classmethod
    def from_dict(cls, table: dict[str, Any], where: str = "") -> Self:
        """Builds an instance from a table.

        Args:
            table: key to value, as TOML or JSON gives it.
            where: the table's name for error messages, for example ``[runtimes.target]``.

        Raises:
            ConfigError: for an unknown key, a missing one, a wrong type or a value out of range.
        """
        assert dataclasses.is_dataclass(cls)
        where = where or cls.__name__.lower()
        known = {f.name: f for f in dataclasses.fields(cls)}
        for old in [key for key in table if key in cls._RENAMED and cls._RENAMED[key] not in table]:
            warnings.warn(
                f"{where}: {old!r} is called {cls._RENAMED[old]!r} now", FutureWarning, stacklevel=2
            )
            table = {
                cls._RENAMED[old] if key == old else key: value for key, value in table.items()
            }
        for key in table:
            if key in cls._REMOVED:
                raise ConfigError(
                    f"{where}: {key!r} is no more", hint="leave it out; CHANGELOG.md says why"
                )
            if key not in known:
                hint = did_you_mean(key, known, f"known keys: {', '.join(sorted(known))}")
                raise ConfigError(f"{where}: unknown key {key!r}", hint=hint)
        kinds = _kinds(cls)
        values = {key: _coerce(value, kinds[key], f"{where}.{key}") for key, value in table.items()}
        try:
            return cls(**values)
        except TypeError:
            lacking = [f.name for f in known.values() if f.name not in values and _required(f)]
            raise ConfigError(f"{where}: missing {', '.join(lacking)}") from None

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def replace(self, **changes: Any) -> Self:
        """A copy with these values, which are checked; None clears a field that may be None, else
        it is an error.
        """
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def with_options(self, **given: Any) -> Self:
        """A copy with these options; None is an option that was not given, and keeps the field's
        value.
        """
        return self.replace(**{key: value for key, value in given.items() if value is not None})

    def with_its_options(self, given: Mapping[str, Any]) -> Self:
        """As ``with_options``, but ignores options that are no fields."""
        return self.with_options(**{f.name: given.get(f.name) for f in dataclasses.fields(self)})  # type: ignore[arg-type]


@cache
def _kinds(cls: Any) -> dict[str, Any]:
    """The annotations of a table's fields."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _coerce(value: Any, kind: Any, where: str) -> Any:
    """Checks ``value`` against an annotation; turns ints into floats and lists into tuples."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _coerce(value, next(a for a in arguments if a is not type(None)), where)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"{where}: {value!r} is not one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_coerce(v, arguments[0], where) for v in value)
    if origin is dict and isinstance(value, dict):
        return {str(k): _coerce(v, arguments[1], f"{where}.{k}") for k, v in value.items()}
    if kind is Any:
        return value
    if isinstance(kind, type) and issubclass(kind, ConfigModel):
        if isinstance(value, dict):
            return kind.from_dict(value, where)
        if kind.SHORT and not isinstance(value, kind):
            return kind.from_dict({kind.SHORT: value}, where)
    if kind in (int, float) and not isinstance(value, (bool, kind)):
        wider = numbers.Integral if kind is int else numbers.Real  # includes numpy's types
        if isinstance(value, wider):
            return kind(value)
    plain = origin or kind
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        raise ConfigError(f"{where}: expected {NAMES.get(plain, 'a table')}, got {value!r}")
    return value


def need(condition: bool, message: str) -> None:
    """Raises ConfigError with this message unless the condition holds."""
    if not condition:
        raise ConfigError(message)
