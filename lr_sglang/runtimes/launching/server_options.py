"""The flags of the installed SGLang, read from its source.

Importing ``ServerArgs`` takes many seconds; parsing the files that define it takes a fraction of one. Every field is a
flag under its own name unless it says otherwise, and every further literal that begins with two dashes in a call of
``Arg`` or ``add_argument`` is one as well. SGLang 0.5.16 has the fields in ``ServerArgs`` itself; 0.5.23 puts it
together from the classes in ``arg_groups/fields``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeGuard

from lr_sglang.errors import ConfigError, SetupError, did_you_mean


@cache
def known() -> frozenset[str]:
    """All flags that ``sglang.launch_server`` takes, without the dashes in front.

    Raises:
        SetupError: SGLang is not installed.
    """
    folder = _folder()
    files = [folder / "server_args.py", *sorted((folder / "arg_groups" / "fields").glob("*.py"))]
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    return frozenset().union(*(_fields(tree, tree is trees[0]) | _literals(tree) for tree in trees))


@cache
def speculative_algorithms() -> frozenset[str]:
    """The names that ``--speculative-algorithm`` takes, without those that plugins register.

    Raises:
        SetupError: SGLang is not installed.
    """
    tree = _source("speculative/spec_info.py")
    enum = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "SpeculativeAlgorithm")
    names = {t.id for n in enum.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    # Other names for one of them are resolved where the arguments are handled.
    aliases = {"NEXTN"} & {n.value for n in ast.walk(_source("arg_groups/speculative_hook.py")) if _is_text(n)}
    return frozenset((names | aliases) - {"NONE"})


def named(extra: Mapping[str, Any]) -> dict[str, Any]:
    """A runtime's ``extra`` under the names of SGLang's command line: dashes within, none in front."""
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


def _source(path: str) -> ast.Module:
    """A file of SGLang's runtime, parsed."""
    return ast.parse((_folder() / path).read_text("utf-8"))


def _folder() -> Path:
    spec = find_spec("sglang")  # finds a top-level package without running it
    if spec is None or spec.origin is None:
        raise SetupError("SGLang is not installed", hint="pip install lr-sglang brings it")
    return Path(spec.origin).parent / "srt"


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _fields(tree: ast.Module, is_server_args: bool) -> set[str]:
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and (n.name == "ServerArgs" or not is_server_args)]
    found = set()
    for node in (node for one in classes for node in one.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            keywords = {k.arg for c in ast.walk(node.annotation) if isinstance(c, ast.Call) for k in c.keywords}
            if not keywords & {"cli_name", "no_cli"}:
                found.add(node.target.id.replace("_", "-"))
    return found


def _literals(tree: ast.Module) -> set[str]:
    found = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _name(call.func) in ("Arg", "add_argument"):
            named = [k.value for k in call.keywords if k.arg in ("aliases", "cli_name")]
            for leaf in (leaf for value in (*call.args, *named) for leaf in ast.walk(value)):
                text = leaf.value if isinstance(leaf, ast.Constant) else None
                if isinstance(text, str) and text.startswith("--"):
                    found.add(text[2:])
    return found


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
