"""Writes docs/cli.md from the commands themselves; ``make docs`` runs it, and a test fails when the
page is stale.

``--check`` writes nothing and fails if the page is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from lr_sglang.cli import cli
from lr_sglang.cli.options import BenchSettings, RunSettings, known
from lr_sglang.config import ROLES
from lr_sglang.serve.settings import ServeSettings

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
PREFIX = "LR_SGLANG"
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
- A variable that is named like an option of a command which has no such option gives a warning.
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


def variable(path: tuple[str, ...], option: click.Option) -> str:
    """The option's environment variable."""
    return "_".join((PREFIX, *path, long_name(option).removeprefix("--"))).replace("-", "_").upper()


def options(command: click.Command) -> list[click.Option]:
    """The options of a command that have a variable: all but --help and --version."""
    found = [one for one in command.params if isinstance(one, click.Option)]
    return [one for one in found if one.expose_value]


def section(path: tuple[str, ...], command: click.Command, context: click.Context) -> Iterator[str]:
    """The section of one command."""
    yield f"{'##' if len(path) < 2 else '###'} {' '.join(('lr-sglang', *path))}\n"
    yield f"```text\n{command.get_help(context).rstrip()}\n```\n"
    named = options(command)
    if named:
        yield "| option | variable |\n|-|-|"
        for one in named:
            names = "/".join(f"`{name}`" for name in (long_name(one), *one.secondary_opts))
            yield f"| {names} | `{variable(path, one)}` |"
        yield ""


SETTINGS = """## Settings

Settings that have no option of their own are given by `-o NAME=VALUE`, as often as needed; so can those that have one. Those
of a deployment are also the keys of its file, and, without what stands before the last dot, the keywords in Python.
`ROLE` is `target`, `draft` or `judge`. A value is read as TOML, else as text; several GPUs may be given as `0,1`.

The command line has precedence over variables, these over the deployment's file, this over what the makers of the model's family
advise (`sampling`), and this over the defaults. *Request*: whether a request to the endpoint may set it, and within which bound.

| setting | type | default | request | meaning |
|-|-|-|-|-|"""


def settings() -> Iterator[str]:
    """The table of all settings."""
    yield SETTINGS
    own = {"run": RunSettings, "bench": BenchSettings, "serve": ServeSettings}
    for one in known(own):
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
