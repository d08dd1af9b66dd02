"""Variables that stand for options: one that is misspelt would be passed over in silence."""

from __future__ import annotations

import os
from collections.abc import Mapping

import click

from lr_sglang.cli.failures import nearest

PREFIX = "LR_SGLANG"


def strange(command: click.Command, name: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that are called as if a command had such an option, each with the nearest one that it has, or "".

    Args:
        name: the command's, below ``lr-sglang``.
    """
    start = f"{PREFIX}_{name}_".upper()
    known = {start + one.name.upper() for one in command.params if isinstance(one, click.Option) and one.name}
    below = command.commands if isinstance(command, click.Group) else {}
    others = tuple(f"{start}{sub}_".upper() for sub in below)
    found = [one for one in environ if one.startswith(start) and one not in known and not one.startswith(others)]
    return {one: next(iter(nearest(one, sorted(known), start)), "") for one in found}


def warn(command: click.Command, name: str) -> None:
    """Says on standard error which variables change nothing."""
    for one, near in strange(command, name).items():
        meant = f"; did you mean {near}?" if near else ""
        click.echo(f"Warning: {one} is no option of {name}, and changes nothing{meant}", err=True)
