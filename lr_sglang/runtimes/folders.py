"""The folders of each user for files that outlive a process, and how such a folder is made."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lr_sglang.errors import LaunchError, SetupError, reason_of


def of_user(variable: str, otherwise: str) -> Path:
    """Our part of a user's folder: of the variable's if that is absolute (the rule of XDG), else of
    that in the home.

    Raises:
        SetupError: there is neither, as for a user without an account in a container.
    """
    given = Path(os.environ.get(variable) or "")
    if given.is_absolute():
        return given / "lr-sglang"
    try:
        return Path("~", otherwise, "lr-sglang").expanduser()
    except RuntimeError as error:
        raise SetupError(
            "this user has no home directory", hint=f"set {variable} to a directory of yours"
        ) from error


def cached(
    kind: str, key: str, name: str, fill: Callable[[Path], None], role: str | None = None
) -> Path:
    """A folder of the user's cache, made atomically if it does not exist.

    Several processes may call this at once.

    Args:
        kind, key: what is in it, and a digest of everything that determines its content.
        name: of the folder.
        fill: writes the files into an empty folder.

    Raises:
        SetupError: it cannot be written.
    """
    folder = of_user("XDG_CACHE_HOME", ".cache") / kind / key / name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as partial:
                    made = Path(partial, name)
                    made.mkdir()
                    fill(made)
                    made.rename(folder)
    except OSError as error:
        hint = "set XDG_CACHE_HOME to a directory of yours"
        raise SetupError(
            f"{kind}: {name!r} cannot be made: {reason_of(error)}", role=role, hint=hint
        ) from error
    return folder


@contextmanager
def temporary_logs() -> Iterator[Path]:
    """A temporary folder, which stays if a server fails: the error names a log in it.

    Raises:
        SetupError: it cannot be made.
    """
    try:
        folder = tempfile.mkdtemp(prefix="lr-sglang-")
    except OSError as error:
        raise SetupError(
            f"no folder for logs: {reason_of(error)}", hint="set TMPDIR to a directory of yours"
        ) from error
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            yield Path(folder)
        except LaunchError:
            stack.pop_all()
            raise
