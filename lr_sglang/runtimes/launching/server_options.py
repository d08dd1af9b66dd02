"""The flags of the installed SGLang, read from its source: importing ``ServerArgs`` takes many
seconds.

Every field is a flag under its own name unless it says otherwise, and every further literal that
begins with two dashes in a call of ``Arg`` or ``add_argument`` is one as well. SGLang 0.5.16 has
the fields in ``ServerArgs`` itself; 0.5.23 puts it together from the classes in
``arg_groups/fields``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lr_sglang.errors import ConfigError, SetupError, did_you_mean
from lr_sglang.sglang_api.need import callee, parsed


@cache
def known() -> frozenset[str]:
    """All flags that ``sglang.launch_server`` takes, without the dashes in front.

    Raises:
        SetupError: SGLang is not installed.
    """
    folder = _folder()
    args = parsed(folder / "server_args.py")
    others = [parsed(file) for file in (folder / "arg_groups" / "fields").glob("*.py")]
    classes = [node for node in args.body if getattr(node, "name", "") == "ServerArgs"]
    classes += [node for tree in others for node in tree.body if isinstance(node, ast.ClassDef)]
    return frozenset().union(*map(_fields, classes), *map(_literals, [args, *others]))


@cache
def speculative_algorithms() -> frozenset[str]:
    """The names that ``--speculative-algorithm`` takes, without those that plugins register.

    Raises:
        SetupError: SGLang is not installed.
    """
    tree = parsed(_folder() / "speculative" / "spec_info.py")
    enum = next(node for node in tree.body if getattr(node, "name", "") == "SpeculativeAlgorithm")
    assert isinstance(enum, ast.ClassDef)
    names = {
        t.id
        for n in enum.body
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    # Another name for one of them, which is resolved where the arguments are handled.
    aliases = {"NEXTN"} & set(_texts(parsed(_folder() / "arg_groups" / "speculative_hook.py")))
    return frozenset((names | aliases) - {"NONE"})


def named(extra: Mapping[str, Any]) -> dict[str, Any]:
    """A runtime's ``extra`` under the names of SGLang's command line: dashes within,
    none in front.
    """
    return {key.lstrip("-").replace("_", "-"): value for key, value in extra.items()}


def check(flags: list[str], where: str) -> None:
    """Refuses what SGLang would refuse seconds later.

    Raises:
        ConfigError: a flag is unknown; the hint has the nearest one.
    """
    for flag in flags:
        if flag not in known() and flag.removeprefix("no-") not in known():
            hint = did_you_mean(flag, known(), "see: python -m sglang.launch_server --help")
            raise ConfigError(f"{where}: the installed SGLang has no flag --{flag}", hint=hint)


def _folder() -> Path:
    spec = find_spec("sglang")  # finds a top-level package without running it
    if spec is None or spec.origin is None:
        raise SetupError("SGLang is not installed", hint="pip install lr-sglang brings it")
    return Path(spec.origin).parent / "srt"


def _texts(tree: ast.AST) -> list[str]:
    return [
        n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]


def _fields(of: ast.AST) -> set[str]:
    found = set()
    for node in getattr(of, "body", ()):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            keywords = {
                k.arg
                for c in ast.walk(node.annotation)
                if isinstance(c, ast.Call)
                for k in c.keywords
            }
            if not keywords & {"cli_name", "no_cli"}:
                found.add(node.target.id.replace("_", "-"))
    return found


def _literals(tree: ast.Module) -> set[str]:
    calls = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and callee(n) in ("Arg", "add_argument")
    ]
    given = [
        a
        for c in calls
        for a in (*c.args, *(k.value for k in c.keywords if k.arg in ("aliases", "cli_name")))
    ]
    return {text[2:] for argument in given for text in _texts(argument) if text.startswith("--")}
