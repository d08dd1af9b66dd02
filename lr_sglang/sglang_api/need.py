"""One name inside of SGLang that lr-sglang relies on, and whether the installed release has it.

The source is parsed and not imported: importing it takes many seconds, parsing a file a few milliseconds, so that it
can be asked before a server starts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from lr_sglang.errors import SetupError
from lr_sglang.sglang_api import release

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Need:
    """A module, class, function or method, by its dotted name.

    Attributes:
        name: ``package.module.Class.method``; also what a hook of SGLang's ``HookRegistry`` is registered for.
        why: what lr-sglang does with it.
        takes: the parameters that its signature begins with, without ``self``, separated by spaces.
        fields: attributes and methods of a class, separated by spaces.
        closed: whether every further parameter must have a default, because we call it or stand in for it.
        calls: for methods of ``self`` that a class calls, how many positional arguments it may hand over.
        since, until: the first and the last release that it is asked of; empty is no bound.
    """

    name: str
    why: str
    takes: str = ""
    fields: str = ""
    closed: bool = False
    calls: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    since: str = ""
    until: str = ""

    def applies(self, installed: str | None = None) -> bool:
        """Whether the release (by default the installed one) is among those that it is asked of."""
        found = release.numbers(release.version() if installed is None else installed)
        after = not self.since or found >= release.numbers(self.since)
        return after and (not self.until or found <= release.numbers(self.until))

    def lacks(self) -> Iterator[str]:
        """What of it the installed source does not have, each as one phrase."""
        file, rest = _module(self.name)
        found: ast.AST | None = parsed(file) if file else None
        for part in rest:
            found = _defined(found.body, part) if isinstance(found, (ast.Module, ast.ClassDef)) else None
        if found is None:
            yield self.name
        elif isinstance(found, _FUNCTION):
            yield from self._parameters(found, method=len(rest) > 1)
        elif isinstance(found, ast.ClassDef):
            has = _attributes(found)
            yield from (f"{self.name}.{name}" for name in self.fields.split() if name not in has)
            yield from self._counts(found)

    def _parameters(self, function: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool) -> Iterator[str]:
        arguments, takes = function.args, self.takes.split()
        plain = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        first = method and not any(getattr(mark, "id", "") == "staticmethod" for mark in function.decorator_list)
        needed = plain[first : len(plain) - len(arguments.defaults)]
        needed += [one.arg for one, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not given]
        if plain[first:][: len(takes)] != takes or (self.closed and set(needed) - set(takes)):
            yield f"{self.name}({', '.join(takes)}), but with ({', '.join(plain[first:])})"

    def _counts(self, of: ast.ClassDef) -> Iterator[str]:
        for name, allowed in self.calls.items():
            calls = [node for node in ast.walk(of) if isinstance(node, ast.Call) and callee(node) == name]
            counts = {len(call.args) for call in calls if not call.keywords}
            if not counts or not counts <= set(allowed):
                found = " and ".join(map(str, sorted(counts))) or "no"
                yield f"{self.name}.{name} called with {' or '.join(map(str, allowed))} arguments, but with {found}"


# A function that we call, or stand in for.
called = partial(Need, closed=True)


def check(needs: Iterable[Need]) -> None:
    """Asks for all that the installed release should have.

    Raises:
        SetupError: SGLang is not installed, or lacks some of it; ``detail`` has everything that it lacks, and why it
            is needed.
    """
    installed = release.version()
    if not installed:
        raise SetupError("SGLang is not installed", hint="pip install lr-sglang brings it")
    lacking = [(phrase, need.why) for need in needs if need.applies(installed) for phrase in need.lacks()]
    if lacking:
        raise SetupError(
            f"this SGLang ({installed}) has no {lacking[0][0]}; tested with {' and '.join(release.TESTED)}",
            hint=f"pip install 'sglang=={release.TESTED[-1]}'",
            detail="\n".join(f"{phrase}: {why}" for phrase, why in lacking),
        )


def _module(name: str) -> tuple[Path | None, list[str]]:
    """The file of the longest part of a dotted name that is a module, and what is left of the name."""
    package, *parts = name.split(".")
    spec = find_spec(package)  # finds a top-level package without running it
    if spec is None or not spec.submodule_search_locations:
        return None, parts
    folder = Path(spec.submodule_search_locations[0])
    while parts and (folder / parts[0]).is_dir():
        folder /= parts.pop(0)
    if parts and (file := folder / f"{parts[0]}.py").is_file():
        return file, parts[1:]
    file = folder / "__init__.py"
    return (file if file.is_file() else None), parts


@cache
def parsed(path: Path) -> ast.Module:
    """A file of SGLang's source."""
    return ast.parse(path.read_text("utf-8"))


def _binds(node: ast.AST) -> set[str]:
    """The names that a statement itself binds."""
    if isinstance(node, (*_FUNCTION, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _defined(body: Iterable[ast.AST], name: str) -> ast.AST | None:
    """The last statement that binds the name, also in branches and with imports."""
    found: ast.AST | None = None
    for node in body:
        if name in _binds(node):
            found = node
        elif not isinstance(node, (*_FUNCTION, ast.ClassDef)):
            found = _defined(ast.iter_child_nodes(node), name) or found
    return found


def _attributes(of: ast.ClassDef) -> set[str]:
    """Names that a class's body binds, and those that its methods set on ``self``."""
    on_self = {
        node.attr
        for node in ast.walk(of)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and getattr(node.value, "id", "") == "self"
    }
    return on_self.union(*map(_binds, of.body))


def callee(call: ast.Call) -> str:
    """The name of what is called: ``add`` in ``a.add()`` and in ``add()``."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
