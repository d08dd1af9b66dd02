"""The runtimes of one command: started (or attached to), connected to, and taken down again."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lr_sglang.config import Deployment, Runtime
from lr_sglang.errors import LookaheadError, RuntimeDown
from lr_sglang.runtimes import Fleet, ProgressEvent, launch
from lr_sglang.sglang_api.light_import import leave_torch_out

# SGLang's frontend takes seconds to import.
FRONTEND = ("transformers.models.auto.tokenization_auto", "lr_sglang.runtimes.connect", "lr_sglang.api.runner")
DYING_SECONDS = 2.0  # between a broken connection and the end of the process that broke it


@dataclass
class Session:
    """Runtimes that are ready: backends by role, and the fleet behind them."""

    roles: Mapping[str, Any]
    fleet: Fleet | None = None
    _told: set[str] = field(default_factory=set)

    @property
    def simulated(self) -> bool:
        """Whether any of them waits instead of computing."""
        return any(backend.simulated for backend in self.roles.values())

    @property
    def versions(self) -> dict[str, str]:
        """What records say of them."""
        caches = ", ".join(dict.fromkeys(backend.prefix_cache for backend in self.roles.values()))
        return {"runtimes": "simulated"} if self.simulated else {"prefix_cache": caches}

    def started(self) -> dict[str, Runtime]:
        """The servers that were started, for others that would start the same: by role, each at its URL."""
        fleet, found = self.fleet, {}
        for role in fleet.servers if fleet else ():
            assert fleet is not None
            one = fleet.deployment.runtimes[role]
            found[role] = Runtime(
                url=fleet.urls[role],
                tokenizer=fleet.tokenizers[role],
                timeout=one.timeout,
                context_length=one.context_length,
            )
        return found

    def newly_dead(self) -> list[str]:
        """Roles whose server has ended since this was last asked."""
        dead = set(self.fleet.dead()) if self.fleet else set()
        fresh = sorted(dead - self._told)
        self._told |= dead
        return fresh


@contextmanager
def session(
    deployment: Deployment, logs: Path, progress: Callable[[ProgressEvent], None], timeout: float, *, lean: bool
) -> Iterator[Session]:
    """Brings a deployment up, and takes down what it started. SGLang is imported while the servers start.

    Args:
        lean: see ``Plan.lean``.

    Raises:
        LookaheadError: as ``runtimes.launch``; one that comes of a server that died has the end of its log.
    """
    to_start = sum(not runtime.url for runtime in deployment.runtimes.values())
    importing = threading.Thread(target=_import, args=(lean,), name="lr-import", daemon=True)

    def tell(event: ProgressEvent) -> None:
        """Imports once every server has started, or the first is further (they can be started in turn).

        Not before: an import holds the interpreter's lock, and the servers, which take longer, would start later.
        """
        nonlocal to_start
        progress(event)
        to_start -= event.stage == "starting"
        if importing.ident is None and (to_start <= 0 or event.stage != "starting"):
            importing.start()

    with launch(deployment, logs, tell, timeout) as fleet:
        if importing.ident is not None:
            importing.join()
        from lr_sglang.runtimes.connect import connected

        with logs_told(fleet), connected(fleet) as roles:
            yield Session(roles, fleet)


@contextmanager
def logs_told(fleet: Fleet) -> Iterator[None]:
    """An error that comes of a server that died has the end of its log."""
    try:
        yield
    except RuntimeDown as error:
        raise _with_log(error, fleet) from None


def _import(lean: bool) -> None:
    with suppress(Exception):  # the main thread gets the same error from the same import
        if lean:
            leave_torch_out()
        for name in FRONTEND:
            importlib.import_module(name)


def _with_log(error: LookaheadError, fleet: Fleet) -> LookaheadError:
    server = fleet.server(error.role or "")
    if server is None:
        return error
    deadline = time.monotonic() + DYING_SECONDS
    while server.alive() and time.monotonic() < deadline:
        time.sleep(0.1)
    if server.alive():
        return error
    return RuntimeDown(
        f"its server ended with status {server.status}",
        role=error.role,
        hint=f"the records so far are kept, and --resume goes on with them; its log: {server.log}",
        detail=server.tail(),
    )
