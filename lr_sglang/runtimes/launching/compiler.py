"""The C++ compiler that SGLang's n-gram speculation needs: it compiles its corpus when a server starts."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from lr_sglang.errors import SetupError


def need_compiler(role: str | None = None, environ: Mapping[str, str] = os.environ) -> None:
    """Makes sure that a server could compile, before it is started. It compiles once for a machine, for 6 s or more.

    Args:
        environ: what the server will have: CXX may name another compiler than ``c++``.

    Raises:
        SetupError: there is no C++ compiler, or no ninja, which comes with SGLang.
    """
    compiler, path = _named(environ.get("CXX", "c++"), role), environ.get("PATH")
    if shutil.which(compiler, path=path) is None:
        raise SetupError(
            f"speculation from n-grams compiles C++, and there is no compiler {compiler!r}",
            role=role,
            hint="install one (on Debian or Ubuntu: apt-get install g++), or leave n-gram speculation out",
        )
    beside = Path(sys.executable).with_name("ninja")
    if shutil.which("ninja", path=path) is None and not beside.is_file():
        raise SetupError(
            "speculation from n-grams compiles C++, and there is no ninja to do it with",
            role=role,
            hint="install it: pip install ninja",
        )


def _named(command: str, role: str | None) -> str:
    """The program in what CXX says, which is used as it is, also where it is empty."""
    try:
        return shlex.split(command)[0]
    except (ValueError, IndexError) as error:
        why = str(error) if isinstance(error, ValueError) else "it is empty"
        raise SetupError(
            f"speculation from n-grams compiles C++, and CXX={command!r} names no compiler: {why}",
            role=role,
            hint="name a compiler, or unset CXX",
        ) from error
