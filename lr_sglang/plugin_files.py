"""The names of programs, verifiers and tasks: ``NAME[:ARGUMENT]`` for one of this package,
``FILE.py:NAME[:ARGUMENT]`` for one in a user's Python file.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import importlib.util
import io
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TextIO

from lr_sglang.errors import ConfigError, did_you_mean

# Matches the first ``FILE.py:NAME`` in the text; the argument may contain others.
_IN_FILE = re.compile(r"(?P<file>.+?\.py):(?P<name>\w+)(?::(?P<argument>.*))?", re.DOTALL)
# A public name that a file defines.
_DEFINED = re.compile(r"^(?:async )?(?:def|class) ([a-zA-Z]\w*)|^([a-zA-Z]\w*) *=", re.MULTILINE)
_PREFIX = "lr_sglang_file_"  # of the names of modules loaded from such files


class Named(NamedTuple):
    """The parts of such a name. ``file`` is empty for one of this package; ``argument`` is None if
    there is none, which is different from an empty one.
    """

    file: str
    name: str
    argument: str | None


def named(text: str) -> Named:
    """Divides a name into its parts."""
    if found := _IN_FILE.fullmatch(text):
        return Named(**found.groupdict())
    name, colon, argument = text.partition(":")
    return Named("", name, argument if colon else None)


def checked_name(kind: str, text: str, names: Sequence[str], example: str) -> Named:
    """The parts of a name, which is one of ``names``, or of something in a Python file.

    Raises:
        ConfigError: it is neither.
    """
    found = named(text)
    if found.file:
        check(found.file, found.name)
    elif found.name not in names:
        raise unknown(kind, text, names, example)
    return found


def inside(file: str) -> list[str]:
    """The public names that a Python file defines, read without running it; none where there is no
    such file.
    """
    path = expanded(file)
    if path.suffix != ".py" or not path.is_file():
        return []
    return ["".join(found) for found in _DEFINED.findall(path.read_text("utf-8", "replace"))]


def unknown(kind: str, text: str, known: Sequence[str], example: str) -> ConfigError:
    """The error for an unknown ``NAME[:ARGUMENT]``, with the nearest known name or all of them; for
    a Python file without a name, with what is in it.
    """
    if names := inside(text):
        return ConfigError(
            f"{text}: which of its names is the {kind}?",
            hint=f"it has {', '.join(f'{text}:{name}' for name in names)}",
        )
    hint = did_you_mean(
        named(text).name, known, f"one of {', '.join(known)}, or {example}", cutoff=0.5
    )
    return ConfigError(f"no {kind} is called {text!r}", hint=hint)


def expanded(path: str | Path) -> Path:
    """A user's path with ``~`` expanded. ``~`` of an unknown user stays in the path.

    (``Path.expanduser`` raises a RuntimeError for an unknown user.)
    """
    return Path(os.path.expanduser(path))


@contextmanager
def opened(source: Path | bytes) -> Iterator[TextIO]:
    """A user's text, from a file or as bytes, to be read line by line: UTF-8, or UTF-16 with a byte
    order mark, as Windows writes it; a line may end in CR, LF or both.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is neither; also while it is read.
    """
    raw = io.BytesIO(source) if isinstance(source, bytes) else io.FileIO(source)
    with io.BufferedReader(raw) as file:
        wide = file.peek(2).startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        yield io.TextIOWrapper(file, "utf-16" if wide else "utf-8-sig")


def text_of(source: Path | bytes) -> str:
    """The whole text; raises as ``opened``."""
    with opened(source) as text:
        return text.read()


def check(file: str, name: str = "") -> None:
    """Checks that a Python file is there, is Python and mentions a name, before servers start and
    without running it.

    Raises:
        ConfigError: there is no such file, it cannot be compiled, or it can have no such name.
    """
    path = expanded(file)
    if not path.is_file():
        raise ConfigError(f"there is no file {file}", hint="FILE.py:NAME, with its path from here")
    try:
        compile(path.read_bytes(), str(path), "exec")
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{file} cannot be loaded: {error}") from error
    names = inside(file)
    text = path.read_text("utf-8", errors="replace")
    # A name that is not in the text can still come from elsewhere, or be made.
    if names and not re.search(rf"\b{name}\b|import \*|globals", text):
        raise _lacks(file, name, names)


def _lacks(file: str | Path, name: str, names: Sequence[str]) -> ConfigError:
    hint = did_you_mean(name, names, f"it has {', '.join(names)}" if names else "")
    return ConfigError(f"{file} has no {name!r}", hint=hint)


def find(file: str | Path, name: str) -> Any:
    """Runs a Python file and returns the object of that name.

    Raises:
        ConfigError: the file has no such name. ImportError: it is no Python file. Also any error of
            its code.
    """
    path = expanded(file).resolve()
    digest = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"{_PREFIX}{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up names of annotations here
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, name):
            has = [k for k, v in vars(module).items() if k[0] != "_" and type(v) is not ModuleType]
            raise _lacks(file, name, has)
        return getattr(module, name)
    except BaseException:
        del sys.modules[spec.name]
        raise


def describe(error: BaseException) -> str:
    """``KeyError('a') (rule.py, line 7)``: an error, and the last line of a user's file in its
    traceback.
    """
    files = {
        module.__file__ for name, module in list(sys.modules.items()) if name.startswith(_PREFIX)
    }
    found = [one for one in traceback.extract_tb(error.__traceback__) if one.filename in files]
    return (
        f"{error!r} ({Path(found[-1].filename).name}, line {found[-1].lineno})"
        if found
        else repr(error)
    )


def is_stop(error: BaseException) -> bool:
    """Whether an exception ends the task from outside: it was cancelled or closed, or a signal ends
    the command.

    Any other exception of a user's code, also ``SystemExit``, is a failure of that code only.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    # cli.failures.Stopped
    signalled = isinstance(error, KeyboardInterrupt) and type(error) is not KeyboardInterrupt
    return signalled or isinstance(error, GeneratorExit)
