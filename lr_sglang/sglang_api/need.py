"""An internal name of SGLang that lr-sglang uses, and a check that the installed release has it.

The check parses SGLang's source instead of importing it: parsing a file takes milliseconds,
importing many seconds. So it can be made before a server starts.
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
        name: ``package.module.Class.method``; also what a hook of SGLang's ``HookRegistry`` is
            registered for.
        why: its use in lr-sglang.
        takes: the first parameters of its signature, without ``self``, separated by spaces.
        fields: attributes and methods of a class, separated by spaces.
        closed: whether all other parameters must have defaults, because we call or replace it.
        calls: permitted numbers of positional arguments, for methods of ``self`` that a class
            calls.
        since, until: the first and the last release to check; empty for no bound.
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
        """Whether the release (default: the installed one) is to be checked."""
        found = release.numbers(release.version() if installed is None else installed)
        after = not self.since or found >= release.numbers(self.since)
        return after and (not self.until or found <= release.numbers(self.until))

    def lacks(self) -> Iterator[str]:
        """Yields a phrase for each part that the installed source lacks."""
        file, rest = _module(self.name)
        found: ast.AST | None = parsed(file) if file else None
        for part in rest:
            found = (
                _defined(found.body, part)
                if isinstance(found, (ast.Module, ast.ClassDef))
                else None
            )
        if found is None:
            yield self.name
        elif isinstance(found, _FUNCTION):
            yield from self._parameters(found, method=len(rest) > 1)
        elif isinstance(found, ast.ClassDef):
            has = _attributes(found)
            yield from (f"{self.name}.{name}" for name in self.fields.split() if name not in has)
            yield from self._counts(found)

    def _parameters(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool
    ) -> Iterator[str]:
        arguments, takes = function.args, self.takes.split()
        plain = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        first = method and not any(
            getattr(mark, "id", "") == "staticmethod" for mark in function.decorator_list
        )
        needed = plain[first : len(plain) - len(arguments.defaults)]
        needed += [
            one.arg
            for one, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if not given
        ]
        if plain[first:][: len(takes)] != takes or (self.closed and set(needed) - set(takes)):
            yield f"{self.name}({', '.join(takes)}), but with ({', '.join(plain[first:])})"

    def _counts(self, of: ast.ClassDef) -> Iterator[str]:
        for name, allowed in self.calls.items():
            calls = [
                node for node in ast.walk(of) if isinstance(node, ast.Call) and callee(node) == name
            ]
            counts = {len(call.args) for call in calls if not call.keywords}
            if not counts or not counts <= set(allowed):
                found = " and ".join(map(str, sorted(counts))) or "no"
                yield (
                    f"{self.name}.{name} called with {' or '.join(map(str, allowed))} "
                    f"arguments, but with {found}"
                )


# A function that we call or replace.
called = partial(Need, closed=True)


def check(needs: Iterable[Need]) -> None:
    """Checks that the installed release has all these names.

    Raises:
        SetupError: SGLang is not installed, or lacks a name; ``detail`` lists what it lacks, with
            the reasons.
    """
    installed = release.version()
    if not installed:
        raise SetupError("SGLang is not installed", hint="pip install lr-sglang brings it")
    lacking = [
        (phrase, need.why) for need in needs if need.applies(installed) for phrase in need.lacks()
    ]
    if lacking:
        raise SetupError(
            f"this SGLang ({installed}) has no {lacking[0][0]}; tested with "
            f"{' and '.join(release.TESTED)}",
            hint=f"pip install 'sglang=={release.TESTED[-1]}'",
            detail="\n".join(f"{phrase}: {why}" for phrase, why in lacking),
        )


def _module(name: str) -> tuple[Path | None, list[str]]:
    """The file of the longest prefix of a dotted name that is a module, and the rest of
    the name.
    """
    package, *parts = name.split(".")
    spec = find_spec(package)  # does not import a top-level package
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
    """The syntax tree of a source file of SGLang."""
    return ast.parse(path.read_text("utf-8"))


def _binds(node: ast.AST) -> set[str]:
    """The names that a statement binds, without those of statements inside it."""
    if isinstance(node, (*_FUNCTION, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _defined(body: Iterable[ast.AST], name: str) -> ast.AST | None:
    """The last statement that binds the name, also an import or a statement inside a branch."""
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
    """The name of the called function: ``add`` in ``a.add()`` and in ``add()``."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
