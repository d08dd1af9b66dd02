"""What is in a file of the user's: a program, a verifier, a task."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from lr_sglang.errors import ConfigError


def find(file: str | Path, name: str) -> Any:
    """The object of that name in a Python file, which is run for it.

    Raises:
        ConfigError: it has no such name. ImportError: it is no Python file. Whatever running it raises.
    """
    path = Path(file).expanduser().resolve()
    digest = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"lr_sglang_file_{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the names in their annotations
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, name):
            raise _missing(file, name, module)
        return getattr(module, name)
    except BaseException:
        del sys.modules[spec.name]
        raise


def _missing(file: str | Path, name: str, module: ModuleType) -> ConfigError:
    """An error with what the file has instead, without what it imports as modules."""
    has = [one for one, value in vars(module).items() if one[0] != "_" and not isinstance(value, ModuleType)]
    near = get_close_matches(name, has, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(has)}" if has else ""
    return ConfigError(f"{file} has no {name!r}", hint=hint)
