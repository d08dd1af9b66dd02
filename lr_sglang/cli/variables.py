"""Variables that stand for options, as LR_SGLANG_RUN_DEPTH for --depth of run: which of them are
ours, and what is wrong with the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import click

from lr_sglang.errors import LookaheadError, did_you_mean

PREFIX = "LR_SGLANG"
# Those that stand for no option; the last ones are of this project's own tests.
OTHERS = frozenset(
    (
        "LR_SGLANG_API_KEYS",
        "LR_SGLANG_DEBUG",
        "LR_SGLANG_FULL",
        "LR_SGLANG_CRASH_FILE",
        "LR_SGLANG_TESTS_LEAN",
        "LR_SGLANG_TEST_MODELS",
    )
)
TAKEN = "lr_sglang.variables"  # in the context of a command: by option, the variable that gives it
# Kubernetes sets these in every pod beside a Service. The first form is a value, which a Service
# named lr-sglang-serve gives to the variable of serve's --port.
_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+", re.IGNORECASE)
_SERVICE = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$"
)


def variable(command: str, option: click.Parameter) -> str:
    """The variable of an option."""
    return f"{PREFIX}_{command}_{option.name}".replace("-", "_").upper()


def options(command: click.Command) -> list[click.Option]:
    """The options of a command that have a variable: all but --help and --version."""
    found = [one for one in command.params if isinstance(one, click.Option)]
    return [one for one in found if one.expose_value]


def variable_names(name: str, command: click.Command) -> list[str]:
    """The variables of a command."""
    return [variable(name, option) for option in options(command)]


def is_of_a_service(name: str, value: str) -> bool:
    """Whether Kubernetes has set a variable, to tell where a Service is."""
    return bool(_ADDRESS.fullmatch(value) or _SERVICE.search(name))


def take_for(ctx: click.Context, name: str, command: click.Command, arguments: list[str]) -> None:
    """Notes which variables give the values of a command's options: not those that are among its
    arguments, and none that Kubernetes has set.
    """
    given = {one.partition("=")[0] for one in arguments}
    taken = ctx.meta[TAKEN] = dict[click.Option, str]()
    for option in options(command):
        value = os.environ.get(variable(name, option), "")
        option.allow_from_autoenv = not is_of_a_service("", value)
        if value and option.allow_from_autoenv and given.isdisjoint(option.opts):
            taken[option] = variable(name, option)


def unknown_variables(environ: Mapping[str, str], ours: Iterable[str]) -> list[str]:
    """What to say of each variable that has our prefix and is none of ``ours``."""
    known = {*ours, *OTHERS}
    found = []
    for name, value in sorted(environ.items()):
        if not name.startswith(f"{PREFIX}_") or name in known or is_of_a_service(name, value):
            continue
        hint = did_you_mean(name, sorted(known), "docs/cli.md lists the variables")
        found.append(f"{name}: there is no such variable; {hint}")
    return found


@contextmanager
def named_in_errors(ctx: click.Context) -> Iterator[None]:
    """Makes an error of a command name the variable that gave the value, in place of an option that
    nobody gave.
    """
    try:
        yield
    except click.BadParameter as error:
        if (name := ctx.meta.get(TAKEN, {}).get(error.param)) is not None:
            error.param_hint = f"'{name}'"
        raise
    except click.UsageError as error:
        if origin := _origin(ctx, error.message):
            raise click.UsageError(error.message + origin, error.ctx) from error
        raise
    except LookaheadError as error:
        error.message += _origin(ctx, error.message, error.role)
        raise


def _origin(ctx: click.Context, message: str, role: str | None = None) -> str:
    """Says which variables an error is about: it names their option, their setting or value."""
    found = []
    for option, name in ctx.meta.get(TAKEN, {}).items():
        value = os.environ.get(name, "")
        words = [*option.opts, *re.findall(r"([\w.-]+)=", value)]
        words += [value] * (len(value) > 1 and not value.isdecimal())
        is_setting = re.search(rf"\w\.{option.name}(?!\w)", message)
        is_named = any(
            re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", message) for word in words
        )
        if is_setting or option.name == role or is_named:
            found.append(name)
    return f" (from {', '.join(found)})" if found else ""
