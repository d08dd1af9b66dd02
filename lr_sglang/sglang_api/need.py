"""One name inside of SGLang that lr-sglang relies on, and whether the installed release has it.

The source is parsed and not imported: importing it takes many seconds, parsing a file a few milliseconds, so that it
can be asked before a server starts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from lr_sglang.errors import SetupError
from lr_sglang.sglang_api import release

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.stmt


@dataclass(frozen=True)
class Need:
    """A module, class, function or method, by its dotted name.

    Attributes:
        name: ``package.module.Class.method``; also what a hook of SGLang's ``HookRegistry`` is registered for.
        why: what lr-sglang does with it.
        takes: the parameters that its signature begins with, without ``self``.
        closed: whether every further parameter must have a default, because we call it or stand in for it.
        fields: attributes and methods of a class.
        calls: for methods of ``self`` that a class calls, how many positional arguments it may hand over.
        since, until: the first and the last release that it is asked of; empty is no bound.
    """

    name: str
    why: str
    takes: tuple[str, ...] = ()
    closed: bool = False
    fields: tuple[str, ...] = ()
    calls: dict[str, tuple[int, ...]] = field(default_factory=dict)
    since: str = ""
    until: str = ""

    def applies(self, installed: str | None = None) -> bool:
        """Whether the release (by default the installed one) is among those that it is asked of."""
        found = release.numbers(release.version() if installed is None else installed)
        after = not self.since or found >= release.numbers(self.since)
        return after and (not self.until or found <= release.numbers(self.until))

    def lacks(self) -> Iterator[str]:
        """What of it the installed source does not have, each as one phrase."""
        found, rest = _module(self.name)
        definition: Definition | None = None
        body = None if found is None else _parsed(found).body
        for part in rest:
            definition = None if body is None else _defined(body, part)
            if definition is None:
                body = None
                break
            body = definition.body if isinstance(definition, ast.ClassDef) else None
        if found is None or (rest and definition is None):
            yield self.name
        elif isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from self._parameters(definition, method="." in ".".join(rest))
        elif isinstance(definition, ast.ClassDef):
            has = _attributes(definition)
            yield from (f"{self.name}.{name}" for name in self.fields if name not in has)
            yield from self._counts(definition)

    def _parameters(self, function: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool) -> Iterator[str]:
        arguments = function.args
        plain = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        bound = method and not any(getattr(mark, "id", "") == "staticmethod" for mark in function.decorator_list)
        needed = plain[: len(plain) - len(arguments.defaults)]
        plain, needed = (plain[1:], needed[1:]) if bound else (plain, needed)
        needed += [one.arg for one, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not given]
        begins = tuple(plain[: len(self.takes)]) == self.takes
        if not begins or (self.closed and set(needed) - set(self.takes)):
            yield f"{self.name}({', '.join(self.takes)}), but with ({', '.join(plain)})"

    def _counts(self, of: ast.ClassDef) -> Iterator[str]:
        for name, allowed in self.calls.items():
            calls = [node for node in ast.walk(of) if isinstance(node, ast.Call) and _called(node) == name]
            counts = {len(call.args) for call in calls if not call.keywords}
            if not counts or not counts <= set(allowed):
                found = " and ".join(map(str, sorted(counts))) or "no"
                yield f"{self.name}.{name} called with {' or '.join(map(str, allowed))} arguments, but with {found}"


def check(needs: Iterable[Need]) -> None:
    """Asks for all that the installed release should have.

    Raises:
        SetupError: SGLang is not installed, or lacks some of it; ``detail`` has everything that it lacks, and why it
            is needed.
    """
    installed = release.version()
    if not installed:
        raise SetupError("SGLang is not installed", hint="pip install lr-sglang brings it")
    asked = [need for need in needs if need.applies(installed)]
    lacking = [(phrase, need.why) for need in asked for phrase in need.lacks()]
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
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _defined(body: list[ast.stmt], name: str) -> Definition | None:
    """The last statement that binds the name, also in branches and with imports."""
    found: Definition | None = None
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found = node if node.name == name else found
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            named = {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            found = node if name in named else found
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = node if any(getattr(target, "id", "") == name for target in targets) else found
        else:
            inner = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
            inner += [handler.body for handler in getattr(node, "handlers", [])]
            found = next((hit for part in inner if (hit := _defined(part, name))), found)
    return found


def _attributes(of: ast.ClassDef) -> set[str]:
    """Names that a class's body binds, and those that its methods set on ``self``."""
    found = {node.attr for node in ast.walk(of) if isinstance(node, ast.Attribute) and _is_set_on_self(node)}
    for node in of.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _is_set_on_self(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
