"""Writes docs/cli.md from the commands themselves; ``make docs`` runs it, and a test fails when the
page is stale.

``--check`` writes nothing and fails if the page is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

import click

from lr_sglang.cli import cli
from lr_sglang.cli.options import BenchSettings, RunSettings
from lr_sglang.cli.variables import PREFIX, options, variable
from lr_sglang.config import ROLES, ConfigModel, Deployment, fields_of
from lr_sglang.serve.settings import ServeSettings

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
WIDTH = 100
HEAD = """# Commands and options

What `--help` says, and the environment variable of each option. This page is written by `make docs`; a test fails when
it is stale.

## Variables
Every option has one: `LR_SGLANG_`, the command, `_`, and the option's long name, in capitals, with `_` for `-`.
`--depth` of `run` is `LR_SGLANG_RUN_DEPTH`.

- A switch takes 1 and 0 (also true and false, yes and no, on and off). One of the form `--this/--no-this` is named
  after `--this`.
- An option that may be given several times takes its values with spaces between them:
  `LR_SGLANG_RUN_MODE="autoregressive lookahead"`.
- The endpoint's keys are in `LR_SGLANG_API_KEYS` ([serving.md](serving.md)).
- `--help` and `--version` have none.
- A variable with our prefix that is none of these is told. What Kubernetes sets beside a Service, such as
  `LR_SGLANG_SERVE_PORT=tcp://10.0.0.7:8000`, is left alone.
"""


def walk(
    command: click.Command, path: tuple[str, ...] = (), parent: click.Context | None = None
) -> Iterator:
    """Every command with its path below ``lr-sglang`` and a context in which it can
    print its help.
    """
    more = {"auto_envvar_prefix": PREFIX} if parent is None else {}
    name = path[-1] if path else "lr-sglang"
    # The group's own settings (help names, width), as main() applies them.
    context = command.context_class(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        **{**command.context_settings, **more},
    )
    yield path, command, context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from walk(found, (*path, below), context)


def long_name(option: click.Option) -> str:
    """The option's name from which click makes the variable's: the first long one."""
    return max(option.opts, key=len)


def section(path: tuple[str, ...], command: click.Command, context: click.Context) -> Iterator[str]:
    """The section of one command."""
    yield f"{'##' if len(path) < 2 else '###'} {' '.join(('lr-sglang', *path))}\n"
    yield f"```text\n{command.get_help(context).rstrip()}\n```\n"
    named = options(command)
    if named:
        yield "| option | variable |\n|-|-|"
        for one in named:
            names = "/".join(f"`{name}`" for name in (long_name(one), *one.secondary_opts))
            yield f"| {names} | `{variable(*path, one)}` |"
        yield ""


SETTINGS = """## Settings

Settings that have no option of their own are given by `-o NAME=VALUE`, as often as needed; so can those that have one. Those
of a deployment are also the keys of its file, and, without what stands before the last dot, the keywords in Python.
`ROLE` is `target`, `draft` or `judge`. A value is read as TOML, else as text; several GPUs may be given as `0,1`.

The command line has precedence over variables, these over the deployment's file, this over what the makers of the model's family
advise (`sampling` from `generation_config.json`, else from our table; `limits.max_tokens` from our table), and this over the defaults. *Request*: whether a request to the endpoint may set it, and within which bound.

| setting | type | default | request | meaning |
|-|-|-|-|-|"""


class Setting(NamedTuple):
    """One setting, for the table.

    Attributes:
        name: dotted, as in a deployment file.
        request: the bound within which a request may set it; empty if it may not.
    """

    name: str
    kind: str
    default: Any
    help: str
    request: str


def described(model: type[ConfigModel], root: str = "") -> Iterator[Setting]:
    """The settings of a model and of its tables."""
    for name, field in fields_of(model, root):
        extra = field.json_schema_extra
        request = str(extra.get("request", "")) if isinstance(extra, dict) else ""
        default = "" if field.is_required() else field.default
        yield Setting(name, _kind(field), default, field.description or "", request)


def _kind(field: Any) -> str:
    """The type of a field with its bounds, in words."""
    annotation = field.annotation
    if annotation == tuple[int, ...]:
        return "list of whole numbers"
    if get_origin(annotation) is dict:
        return "table"
    inner = [one for one in get_args(annotation) if one is not type(None)]
    choices = [name for one in inner for name in (get_args(one) or [one]) if isinstance(name, str)]
    if choices:
        return " or ".join(filter(None, choices))
    words = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    found = next((words[one] for one in (annotation, *inner) if one in words), "table")
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [
        f"{sign} {getattr(one, key)}"
        for one in field.metadata
        for key, sign in signs.items()
        if getattr(one, key, None) is not None
    ]
    return " ".join([found, ", ".join(bounds)]).strip()


def settings() -> Iterator[str]:
    """The table of all settings."""
    yield SETTINGS
    own = {"run": RunSettings, "bench": BenchSettings, "serve": ServeSettings}
    tables = [described(Deployment), *(described(own[root], f"{root}.") for root in own)]
    for one in chain.from_iterable(tables):
        parts = one.name.split(".")
        if parts[0] == "runtimes":
            if parts[1] != ROLES[0]:
                continue
            parts[1] = "ROLE"
        default = "" if one.default in (None, "", (), {}) else f"`{one.default}`"
        cells = (f"`{'.'.join(parts)}`", one.kind, default, one.request or "no", one.help)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def page() -> str:
    """The whole page."""
    parts = [HEAD, *settings()]
    for found in walk(cli):
        parts += section(*found)
    return "\n".join(parts)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(PAGE.read_text("utf-8") != page() and "docs/cli.md is stale: make docs writes it")
    PAGE.write_text(page(), "utf-8")
