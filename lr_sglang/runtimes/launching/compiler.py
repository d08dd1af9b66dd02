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
    command, path, why = environ.get("CXX", "c++"), environ.get("PATH"), "speculation from n-grams compiles C++, and"
    try:
        compiler = shlex.split(command)[0]  # CXX is used as it is, also where it is empty
    except (ValueError, IndexError) as error:
        what = f"CXX={command!r} names no compiler: {error if isinstance(error, ValueError) else 'it is empty'}"
        raise SetupError(f"{why} {what}", role=role, hint="name a compiler, or unset CXX") from error
    if shutil.which(compiler, path=path) is None:
        hint = "install one (on Debian or Ubuntu: apt-get install g++), or leave n-gram speculation out"
        raise SetupError(f"{why} there is no compiler {compiler!r}", role=role, hint=hint)
    if shutil.which("ninja", path=path) is None and not Path(sys.executable).with_name("ninja").is_file():
        raise SetupError(f"{why} there is no ninja to do it with", role=role, hint="install it: pip install ninja")
