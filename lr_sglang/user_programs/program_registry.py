"""Resolves the names that ``--program`` takes, without importing SGLang.

NAME[:KEY=VALUE,...]              of this package (``PROGRAM_NAMES``), in ``programs/NAME.py``
FILE.py:FUNCTION[:KEY=VALUE,...]  from a file
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from lr_sglang import plugin_files
from lr_sglang.errors import ConfigError, did_you_mean

PACKAGE = "lr_sglang.programs"
PROGRAM_NAMES = (
    "autoregressive",
    "best_of_n",
    "budget_forcing",
    "conf_spec",
    "early_exit",
    "glimp_router",
    "lookahead",
    "plan_then_solve",
    "rsd",
    "self_consistency",
    "spec_cot",
    "specreason",
)
# Those that write by ``lookahead()``, and so by the verifier.
LOOKING_AHEAD = (
    "best_of_n",
    "budget_forcing",
    "early_exit",
    "lookahead",
    "plan_then_solve",
    "self_consistency",
)
_HINT = "docs/programs.md has an example"


@dataclass(frozen=True)
class ChosenProgram:
    """The parsed value of ``--program``.

    Attributes:
        file: its path; empty for a program of the package.
        options: keyword arguments of its function.
    """

    name: str
    file: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        return not self.file


def parse_program(text: str) -> ChosenProgram:
    """Parses ``--program`` without importing the program.

    Raises:
        ConfigError: there is no such program.
    """
    found = plugin_files.checked_name("program", text, PROGRAM_NAMES, "FILE.py:FUNCTION")
    return ChosenProgram(found.name, found.file, _options(found.argument or ""))


def check_program_verifier(program: str, verifier: str) -> None:
    """Checks that a program may ask the verifier that is given, as one from a file may.

    Raises:
        ConfigError: it does not write by ``lookahead()``.
    """
    chosen = parse_program(program)
    if chosen.ours and chosen.name not in LOOKING_AHEAD:
        raise ConfigError(
            f"--verifier {verifier}: program {program} asks no verifier", hint="leave it out"
        )


def check_arguments(name: str, takes: Sequence[str], options: Collection[str]) -> None:
    """Checks that a program with the arguments ``takes``, after the conversation, has all options.

    Raises:
        ConfigError: it lacks one.
    """
    taken = [one for one in takes if one != "request"]
    if wrong := sorted(set(options) - set(taken)):
        every = f"it takes {', '.join(taken)}" if taken else "it takes no options"
        raise ConfigError(
            f"--program {name}: there is no option {wrong[0]!r}",
            hint=did_you_mean(wrong[0], taken, every),
        )


def load_program(chosen: ChosenProgram) -> Any:
    """Imports the program; raises ``ConfigError`` if that fails."""
    try:
        if chosen.file:
            return plugin_files.find(chosen.file, chosen.name)
        return getattr(importlib.import_module(f"{PACKAGE}.{chosen.name}"), chosen.name)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"--program {chosen.name}: {error!r}", hint=_HINT) from error


def _options(text: str) -> dict[str, Any]:
    """Parses ``samples=5,end=Wait``: a value is JSON if it can be parsed as such, else text."""
    found: dict[str, Any] = {}
    for part in filter(None, re.split(r",(?=\s*\w+=)", text)):  # a value may have commas
        key, equals, value = part.partition("=")
        if not equals or not key.strip().isidentifier():
            raise ConfigError(
                f"--program: {part!r} is no KEY=VALUE",
                hint="for example self_consistency:samples=8",
            )
        try:
            found[key.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            found[key.strip()] = value
    return found
