"""The deployments that ``lr-sglang launch`` keeps up on this machine: a file for each, for this
user only.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lr_sglang.config import ROLES, Deployment, Runtime
from lr_sglang.errors import ConfigError, SetupError
from lr_sglang.runtimes import folders
from lr_sglang.runtimes.deployments import built_in
from lr_sglang.runtimes.launching.fleet import Fleet

_ELSEWHERE = "set XDG_STATE_HOME to a directory of yours"


@dataclass(frozen=True)
class Launched:
    """A deployment that is up.

    Attributes:
        pid: of the ``lr-sglang launch`` that keeps it up; ``born`` differs for a later process with
            the same pid.
        modes: that its servers were started for.
        layered: whether they have their token layer.
        roles: by role, url, model, pid of the server and its log.
        deployment: for attaching, with every runtime at its URL.
        sampling: the settings that the deployment's file itself gives.
    """

    name: str
    pid: int
    born: int
    started: str
    modes: list[str]
    layered: bool
    roles: dict[str, dict[str, Any]]
    deployment: dict[str, Any]
    sampling: dict[str, Any] = field(default_factory=dict)

    @property
    def mode(self) -> str:
        """The default mode of a run that attaches."""
        ahead = "lookahead+sd" if self.layered else "lookahead"
        return ahead if ahead in self.modes else self.modes[0]

    def alive(self) -> bool:
        """Whether the process that keeps it up still runs."""
        return born(self.pid) == self.born != 0

    def attachable(self) -> Deployment:
        """The deployment with each runtime at its URL."""
        return Deployment.from_dict(self.deployment, f"deployment {self.name}")


def state_home() -> Path:
    """The folder of these files, and of the servers' logs."""
    return folders.of_user("XDG_STATE_HOME", ".local/state")


def path_of(name: str) -> Path:
    """The file of a name."""
    return state_home() / "launched" / (re.sub(r"[^\w.-]+", "-", name) + ".json")


def born(pid: int) -> int:
    """The start time of a process in ticks of the kernel; 0 if there is no such process."""
    try:
        # Field 2 is the name in brackets, which may hold spaces; the fields behind it begin with
        # the state.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if fields[0] == "Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def describe(
    fleet: Fleet, modes: list[str], layered: bool, sampling: dict[str, Any], started: str
) -> Launched:
    """The description of a fleet for its file."""
    deployment = fleet.deployment
    roles: dict[str, dict[str, Any]] = {}
    runtimes: dict[str, Runtime] = {}
    for role in (role for role in ROLES if role in fleet.urls):
        url, runtime, server = fleet.urls[role], deployment.runtime(role), fleet.server(role)
        assert runtime is not None
        process = (server.pid, str(server.log.resolve())) if server else (None, None)
        roles[role] = {"url": url, "model": runtime.model, "pid": process[0], "log": process[1]}
        if role in deployment.runtimes:
            at_url = runtime if runtime.url else Runtime(url=url, timeout=runtime.timeout)
            runtimes[role] = at_url.replace(tokenizer=fleet.tokenizers[role] or at_url.tokenizer)
    us, attachable = os.getpid(), deployment.replace(runtimes=runtimes).to_dict()
    return Launched(
        deployment.name, us, born(us), started, modes, layered, roles, attachable, sampling
    )


def write(launched: Launched) -> Path:
    """Writes the file atomically, for this user only.

    Raises:
        SetupError: it cannot be written.
    """
    path = path_of(launched.name)
    with _kept_in(path.parent):
        handle, partial = tempfile.mkstemp(prefix=".", dir=path.parent)  # made with mode 0600
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(launched), file, ensure_ascii=False, indent=1)
        Path(partial).replace(path)
    return path


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Makes the folder; an OSError in the ``with`` block becomes a SetupError that names it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield
    except OSError as error:
        raise SetupError(
            f"the state of the deployment cannot be kept: {error}", hint=_ELSEWHERE
        ) from error


def remove(name: str) -> None:
    """Removes the file of a deployment, if this process wrote it."""
    with suppress(ConfigError, OSError):
        if read(path_of(name)).pid == os.getpid():
            path_of(name).unlink()


def read(path: Path) -> Launched:
    """One file.

    Raises:
        ConfigError: it cannot be read, or another user or another version of lr-sglang can have
            written it.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8") as file:
            about, us = os.fstat(file.fileno()), os.getuid()
            if about.st_uid != us or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                why = "it is another user's, or others may write it: it is not trusted"
                raise ConfigError(f"{path}: {why}", hint=_ELSEWHERE)
            return Launched(**json.load(file))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        hint = "stop that lr-sglang launch and start it again"
        raise ConfigError(
            f"{path}: this is not what this version of lr-sglang writes", hint=hint
        ) from error


def up() -> list[Launched]:
    """Everything that is up."""
    found = []
    for path in sorted(path_of("x").parent.glob("*.json")):
        with suppress(ConfigError):
            found.append(read(path))
    return [one for one in found if one.alive()]


def find(name: str) -> Launched:
    """The deployment of that name.

    Raises:
        ConfigError: there is none, or it is not up any more.
    """
    path = path_of(name)
    if not path.exists():
        there = ", ".join(one.name for one in up()) or "none"
        raise ConfigError(
            f"no deployment {name!r} is up", hint=f"start it with: {_again(name)} (up now: {there})"
        )
    found = read(path)
    if not found.alive():
        keeper = f"the lr-sglang launch that kept it (process {found.pid}, started {found.started})"
        hint = f"start it again: {_again(name)}"
        raise ConfigError(f"deployment {name!r} is not up any more: {keeper} has ended", hint=hint)
    return found


def _again(name: str) -> str:
    """The command that starts a deployment: by name if it is built in, else by its file."""
    return (
        f"lr-sglang launch {name}" if name in built_in() else f"lr-sglang launch FILE --name {name}"
    )


@contextmanager
def claimed(name: str) -> Iterator[None]:
    """Reserves a name among this user's ``lr-sglang launch`` processes, until this one ends or
    crashes.

    Raises:
        ConfigError: another one has it. SetupError: as ``write``.
    """
    path = path_of(name).with_suffix(".lock")
    with ExitStack() as stack:
        with _kept_in(path.parent):
            file = stack.enter_context(
                path.open("a")
            )  # never deleted: two processes could lock two files
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                other = next(
                    (f" (process {one.pid})" for one in up() if path_of(one.name) == path_of(name)),
                    "",
                )
                raise ConfigError(
                    f"a deployment {name!r} is up already{other}, or comes up",
                    hint="attach to it (lr-sglang run --attach), or give this one another --name",
                ) from None
        yield
