"""The deployments that ``lr-sglang launch`` keeps up on this machine: a file for each, for this
user only.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lr_sglang.config import ROLES, ConfigModel, Deployment
from lr_sglang.errors import ConfigError, SetupError, reason_of
from lr_sglang.runtimes import folders
from lr_sglang.runtimes.deployments import (
    DEFAULT_DEPLOYMENT,
    built_in,
    custom,
    load_deployment,
    override_all,
)
from lr_sglang.runtimes.launching.fleet import Fleet

_ELSEWHERE = "set XDG_STATE_HOME to a directory of yours"


class Launched(ConfigModel):
    """A deployment that is up.

    Attributes:
        pid: of the ``lr-sglang launch`` that keeps it up; ``born`` differs for a later process with
            the same pid.
        modes: that its servers were started for.
        layered: whether they have their token layer.
        roles: by role, url, model, pid of the server and its log.
        deployment: for attaching, with every runtime at its URL.
    """

    name: str
    pid: int
    born: int
    started: str
    modes: list[str]
    layered: bool
    roles: dict[str, dict[str, Any]]
    deployment: Deployment

    @property
    def mode(self) -> str:
        """The default mode of a run that attaches."""
        ahead = "lookahead+sd" if self.layered else "lookahead"
        return ahead if ahead in self.modes else self.modes[0]

    def alive(self) -> bool:
        """Whether the process that keeps it up still runs."""
        return born(self.pid) == self.born != 0


def state_home() -> Path:
    """The folder of these files, and of the servers' logs."""
    return folders.of_user("XDG_STATE_HOME", ".local/state")


def launched_file(name: str) -> Path:
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


def describe_launched(fleet: Fleet, modes: list[str], layered: bool, started: str) -> Launched:
    """The description of a fleet for its file."""
    deployment = fleet.deployment
    roles: dict[str, dict[str, Any]] = {}
    for role in (role for role in ROLES if role in fleet.urls):
        url = fleet.urls[role]
        runtime = deployment.runtime(role)
        server = fleet.server(role)
        assert runtime is not None
        process = (server.pid, str(server.log.resolve())) if server else (None, None)
        roles[role] = {"url": url, "model": runtime.model, "pid": process[0], "log": process[1]}
    us = os.getpid()
    attachable = deployment.replace(runtimes=fleet.at_urls())
    return Launched(
        name=deployment.name,
        pid=us,
        born=born(us),
        started=started,
        modes=modes,
        layered=layered,
        roles=roles,
        deployment=attachable,
    )


def write(launched: Launched) -> Path:
    """Writes the file atomically, for this user only.

    Raises:
        SetupError: it cannot be written.
    """
    path = launched_file(launched.name)
    with _kept_in(path.parent):
        handle, partial = tempfile.mkstemp(prefix=".", dir=path.parent)  # made with mode 0600
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(launched.to_dict(), file, ensure_ascii=False, indent=1)
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
            f"{folder}: the state of the deployment cannot be kept: {reason_of(error)}",
            hint=_ELSEWHERE,
        ) from error


def remove(name: str) -> None:
    """Removes the file of a deployment, if this process wrote it."""
    with suppress(ConfigError, OSError):
        if read_launched(launched_file(name)).pid == os.getpid():
            launched_file(name).unlink()


def read_launched(path: Path) -> Launched:
    """One file.

    Raises:
        ConfigError: it cannot be read, or another version of lr-sglang has written it.
    """
    try:
        return Launched.from_dict(json.loads(path.read_text("utf-8")), str(path))
    except (OSError, ValueError, RecursionError) as error:
        hint = "stop that lr-sglang launch and start it again"
        raise ConfigError(f"cannot read {path}: {reason_of(error)}", hint=hint) from error


def up() -> list[Launched]:
    """Everything that is up."""
    found = []
    for path in sorted(launched_file("x").parent.glob("*.json")):
        with suppress(ConfigError):
            found.append(read_launched(path))
    return [one for one in found if one.alive()]


def find_launched(name: str) -> Launched:
    """The deployment of that name.

    Raises:
        ConfigError: there is none, or it is not up any more.
    """
    path = launched_file(name)
    again = name if name in built_in() else f"FILE --name {name}"
    hint = f"start it with: lr-sglang launch {again}"
    if not path.exists():
        there = ", ".join(one.name for one in up()) or "none"
        raise ConfigError(f"no deployment {name!r} is up", hint=f"{hint} (up now: {there})")
    found = read_launched(path)
    if not found.alive():
        keeper = f"the lr-sglang launch that kept it (process {found.pid}, started {found.started})"
        raise ConfigError(f"deployment {name!r} is not up any more: {keeper} has ended", hint=hint)
    return found


@contextmanager
def claimed(name: str) -> Iterator[None]:
    """Reserves a name among this user's ``lr-sglang launch`` processes, until this one ends or
    crashes.

    Raises:
        ConfigError: another one has it. SetupError: as ``write``.
    """
    path = launched_file(name).with_suffix(".lock")
    with _kept_in(path.parent), path.open("a") as file:  # never deleted: two could lock two files
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"a deployment {name!r} is up already, or comes up",
                hint="attach to it (lr-sglang run --attach), or give this one another --name",
            ) from None
        yield


def chosen(
    of: str | Path | Deployment | None, attach: str | None, roles: Mapping[str, str | None]
) -> Deployment:
    """The deployment that is asked for: a file, a built-in one or the one that is ``attach`` by
    name, else of the target in ``roles`` alone, else the pocket models; with ``roles`` in it.

    Raises:
        ConfigError: there is no such deployment or role, it does not run, or two are named.
    """
    if attach and of:
        hint = "leave one of them out"
        raise ConfigError("attach and a deployment both say where the runtimes are", hint=hint)
    if attach:
        found = find_launched(attach).deployment
    elif not of and (target := roles.get("target")):
        found = custom(target)
    else:
        found = of if isinstance(of, Deployment) else load_deployment(of or DEFAULT_DEPLOYMENT)
    return override_all(found, roles)
