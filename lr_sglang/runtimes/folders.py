"""Where files that outlive a process lie, for each user."""

from __future__ import annotations

import os
from pathlib import Path

from lr_sglang.errors import SetupError


def of_user(variable: str, otherwise: str) -> Path:
    """Our part of a folder of the user's: the variable's if it is absolute (as XDG has it), else that in the home.

    Raises:
        SetupError: there is neither, as for a number without an account in a container.
    """
    given = Path(os.environ.get(variable) or "")
    if given.is_absolute():
        return given / "lr-sglang"
    try:
        return Path("~", otherwise, "lr-sglang").expanduser()
    except RuntimeError as error:
        raise SetupError("this user has no home directory", hint=f"set {variable} to a directory of yours") from error
