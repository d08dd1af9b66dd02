"""The runtimes of one command: starts them (or attaches), connects, checks their memory, and stops
them.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lr_sglang.api.configuration import Plan
from lr_sglang.cli.display import Display
from lr_sglang.config import Deployment, Runtime
from lr_sglang.runtimes import Fleet, ProgressEvent
from lr_sglang.runtimes.attach import other_prompts, without_seeds
from lr_sglang.runtimes.connect import deployed
from lr_sglang.sglang_api.light_import import leave_torch_out

# SGLang's frontend takes seconds to import.
FRONTEND = (
    "transformers.models.auto.tokenization_auto",
    "lr_sglang.frontend.backend",
    "lr_sglang.api.runner",
)


@dataclass
class Session:
    """Runtimes that are ready: backends by role, and the fleet behind them."""

    roles: Mapping[str, Any]
    fleet: Fleet | None = None

    @property
    def versions(self) -> dict[str, str]:
        """The runtimes' part of ``versions`` in records."""
        caches = ", ".join(dict.fromkeys(backend.prefix_cache for backend in self.roles.values()))
        return {"prefix_cache": caches}

    def started(self) -> dict[str, Runtime]:
        """The runtimes by role, each at its URL, for other sessions that need the same server."""
        return self.fleet.at_urls() if self.fleet else {}


@contextmanager
def session(
    deployment: Deployment,
    logs: Path,
    progress: Callable[[ProgressEvent], None],
    timeout: float,
    *,
    lean: bool,
) -> Iterator[Session]:
    """Starts a deployment, and finally stops what it started. SGLang is imported while the servers
    start.

    Args:
        lean: see ``Plan.lean``.

    Raises:
        LookaheadError: as ``deployed``.
    """
    began = time.monotonic()
    to_start = sum(not runtime.url for runtime in deployment.runtimes.values())
    importing = threading.Thread(target=_import, args=(lean,), name="lr-import", daemon=True)

    def tell(event: ProgressEvent) -> None:
        """Begins the import when the last server has been started, or the first has gone on (some
        start in turn).

        An earlier import would hold the interpreter's lock and delay the servers, which take
        longer.
        """
        nonlocal to_start
        progress(event)
        to_start -= event.stage == "starting"
        if importing.ident is None and (to_start <= 0 or event.stage != "starting"):
            importing.start()

    live = Session({})

    def ready(fleet: Fleet) -> None:
        live.fleet = fleet
        if importing.is_alive():  # as where servers were up before
            progress(ProgressEvent("SGLang", "importing", time.monotonic() - began))
            importing.join()
            progress(ProgressEvent("SGLang", "ready", time.monotonic() - began))

    with deployed(deployment, logs, tell, timeout, ready) as live.roles:
        yield live


def _import(lean: bool) -> None:
    with suppress(Exception):  # the main thread gets the same error from the same import
        if lean:
            leave_torch_out()
        for name in FRONTEND:
            importlib.import_module(name)


def tell_faults(roles: Mapping[str, Any], plan: Plan, display: Display) -> None:
    """Warns of runtimes that make other prompts themselves, and where seeds have no effect, if
    answers are drawn.
    """
    for text in other_prompts(roles):
        display.warn(text)
    if plan.deployment.sampling.temperature > 0:
        for text in without_seeds(roles):
            display.warn(text)
