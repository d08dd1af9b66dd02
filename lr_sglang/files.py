"""What is in a file of the user's: a program, a verifier, a task."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def find(file: str | Path, name: str) -> Any:
    """The object of that name in a Python file, which is run for it.

    Raises:
        ImportError: it is no Python file. AttributeError: it has no such name. Whatever running it raises.
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
        return getattr(module, name)
    except BaseException:
        del sys.modules[spec.name]
        raise
