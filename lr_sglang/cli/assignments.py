"""``-o NAME=VALUE``: any setting of a deployment, of the questions or of the command, by its dotted
name.

A name is that of the deployment file: ``lookahead.width``, ``runtimes.target.gpus``. A value is
read as TOML where it is TOML, else as text.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

import click

from lr_sglang.config import ROLES, ConfigModel, Deployment, Described, described
from lr_sglang.errors import ConfigError, did_you_mean

Table = dict[str, Any]
LAYER = "token_layer"
ALGORITHM = "algorithm"
HELP = "help"  # asks for the list of settings


class OfVariable(Table):
    """A table that comes from an environment variable, so that named options have precedence."""


class Assignment(click.ParamType):
    """``NAME=VALUE``, as a table with tables in it."""

    name = "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        if value == HELP:
            return HELP, None
        name, equals, text = str(value).partition("=")
        if not equals or not name.strip():
            self.fail(f"{value!r} is no NAME=VALUE, such as lookahead.width=2", param, ctx)
        return name.strip(), parsed(text.strip())


def parsed(text: str) -> Any:
    """The value that a text stands for: a TOML value, or the text itself."""
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    plain = isinstance(found["value"], bool | int | float | str | list | dict)
    return found["value"] if found.keys() == {"value"} and plain else text


def known(own: Mapping[str, type[ConfigModel]]) -> list[Described]:
    """All settings: of a deployment, and of the command itself."""
    mine = [one for root, model in own.items() for one in described(model, f"{root}.")]
    return [*described(Deployment), *mine]


def listed(own: Mapping[str, type[ConfigModel]]) -> str:
    """The list of settings: name, help and default, those of a runtime once."""
    rows = []
    for one in known(own):
        first, _, rest = one.name.partition(".")
        role = rest.partition(".")[0]
        if first == "runtimes" and role != ROLES[0]:
            continue
        name = one.name.replace(f"runtimes.{ROLES[0]}.", "runtimes.ROLE.")
        default = "" if one.default in (None, "", (), {}) else f"  [default: {one.default}]"
        rows.append(f"{name:44} {one.help}{default}")
    return "\n".join(rows)


def gathered(
    assignments: tuple[tuple[str, Any], ...], own: Mapping[str, type[ConfigModel]]
) -> Table:
    """The table of several assignments; of one name the last counts.

    Args:
        own: the settings of the command itself, by the root of their names.

    Raises:
        ConfigError: there is no such setting.
    """
    table: Table = {}
    names = [*(one.name for one in known(own)), *(f"shared.{role}" for role in ROLES)]
    for name, value in assignments:
        _check(name, names)
        merge(table, nested(name, value))
    return table


def _check(name: str, known: list[str]) -> None:
    if name in known or ".extra." in name:
        return
    if any(one.startswith(f"{name}.") for one in known):
        return  # a whole table
    below = [one for one in known if one.endswith(f".{name}")]
    hint = did_you_mean(name, known, "docs/cli.md lists the settings")
    hint = f"did you mean {below[0]}?" if below else hint
    raise ConfigError(f"-o {name}: there is no such setting", hint=hint)


def nested(name: str, value: Any) -> Table:
    """``{"a": {"b": value}}`` for ``a.b``; what follows ``extra`` is one name."""
    first, dot, rest = name.partition(".")
    if dot:
        return {first: {rest: value} if first == "extra" else nested(rest, value)}
    if first == LAYER and isinstance(value, str):
        return {LAYER: {ALGORITHM: value}}
    if isinstance(value, dict) and first != "extra":
        return {first: {k: v for key, one in value.items() for k, v in nested(key, one).items()}}
    return {first: value}


def merge(table: Table, more: Mapping[str, Any]) -> Table:
    """Puts ``more`` over ``table``, tables within tables. Another algorithm begins a new token
    layer.
    """
    for key, value in more.items():
        before = table.get(key)
        if not isinstance(value, Mapping) or not isinstance(before, dict):
            table[key] = merge({}, value) if isinstance(value, Mapping) else value
        elif key == LAYER and before.get(ALGORITHM) != value.get(ALGORITHM, before.get(ALGORITHM)):
            table[key] = dict(value)
        else:
            merge(before, value)
    return table
