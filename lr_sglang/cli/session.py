"""The runtimes of one command: starts them (or attaches), connects, checks their memory, and stops
them.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lr_sglang.algorithm import policy
from lr_sglang.api.configuration import Plan
from lr_sglang.cli.display import Display
from lr_sglang.config import Deployment, Role, Runtime
from lr_sglang.errors import LookaheadError, RuntimeDown
from lr_sglang.modes import MODES
from lr_sglang.runtimes import Fleet, ProgressEvent, launch
from lr_sglang.runtimes.launching.probe import Room
from lr_sglang.runtimes.seed_check import without_seeds
from lr_sglang.sglang_api.light_import import leave_torch_out

# SGLang's frontend takes seconds to import.
FRONTEND = (
    "transformers.models.auto.tokenization_auto",
    "lr_sglang.runtimes.connect",
    "lr_sglang.api.runner",
)
DYING_SECONDS = 2.0  # between a broken connection and the end of the process that broke it


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
        """The started servers by role, each as a runtime at its URL, for other sessions that need
        the same server.
        """
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

    def dead(self) -> set[str]:
        """The roles whose server has ended."""
        return set(self.fleet.dead()) if self.fleet else set()


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
        LookaheadError: as ``runtimes.launch``; after the death of a server with the end of its log.
    """
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

    with launch(deployment, logs, tell, timeout) as fleet:
        if importing.ident is not None:
            importing.join()
        from lr_sglang.runtimes.connect import connected

        with logs_told(fleet), connected(fleet) as roles:
            yield Session(roles, fleet)


@contextmanager
def logs_told(fleet: Fleet) -> Iterator[None]:
    """Adds the end of a server's log to an error that follows from the death of that server."""
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
        hint=f"its log: {server.log}",
        detail=server.tail(),
    )


def tell_shortages(shortages: Iterable[tuple[bool, str]], display: Display) -> None:
    """Prints each once: as a warning if one answer's branches do not fit, as a note if those of all
    answers do not.
    """
    for text, urgent in {text: urgent for urgent, text in shortages}.items():
        (display.warn if urgent else display.note)(text)


def of_servers(plan: Plan, fleet: Fleet) -> Iterator[tuple[bool, str]]:
    """Notes from the servers' logs, and shortages of memory: the part of ``shortages`` that needs
    no backends.
    """
    yield from ((False, note) for note in fleet.notes())
    draft = fleet.room("draft") if "draft" in fleet.urls else Room()
    yield from memory(plan, fleet.room("target"), draft)


def memory(plan: Plan, target: Room, draft: Room) -> Iterator[tuple[bool, str]]:
    """Whether target or draft have too little memory for an answer."""
    wanted = max(plan.limits.max_tokens or 0, plan.limits.max_total_tokens or 0)
    more = "extra = {max-total-tokens = ...} of its runtime"
    if target.held is not None and target.held < wanted:
        yield (
            True,
            f"target: its memory holds {target.held} tokens, so that an answer ends there and not "
            f"at {wanted} ({more}, where there is room for more)",
        )
    elif target.held is not None and target.held < (target.context or 0):
        yield (
            False,
            f"target: its memory holds {target.held} tokens, not the {target.context} of its "
            f"context: longer prompts are refused ({more} changes that)",
        )
    longest = min(room for room in (wanted, target.tokens) if room) if wanted else target.tokens
    if draft.held is not None and longest is not None and draft.held < longest:
        yield (
            False,
            f"draft: its memory holds {draft.held} tokens, and an answer may need {longest}: what "
            f"follows is not drafted ({more} changes that)",
        )


def shortages(
    plan: Plan, modes: Collection[str], live: Session, answers: int
) -> Iterator[tuple[bool, str]]:
    """What each runtime lacks, each with True if that concerns every answer: memory, slots, or
    seeds that have an effect.

    Args:
        answers: number of concurrent answers.
    """
    ahead = [mode for mode in modes if MODES[mode].ahead]
    asked: dict[str, list[Role]] = {}
    for role in dict.fromkeys(role for mode in ahead for role in plan.roles(mode)):
        if live.fleet is not None and role in live.roles:
            asked.setdefault(live.fleet.urls[role], []).append(role)
    if live.fleet is not None:
        yield from of_servers(plan, live.fleet)
    if plan.sampling.temperature > 0:
        yield from ((True, text) for text in without_seeds(live.roles))
    for roles in asked.values():
        backend, one = live.roles[roles[0]], plan.branches(roles, ahead)
        most = policy.limit(backend.max_running_requests, backend.kv_tokens, plan.lookahead)
        if most is None or most >= answers * one:
            continue
        number, urgent = (1, True) if most < one else (answers, False)
        yield (
            urgent,
            f"{' and '.join(roles)}: {most} requests at a time, and {number} "
            f"answer{'s' * (number > 1)} at --depth {plan.lookahead.depth} can have {number * one} "
            "in flight: then less is looked ahead (lr-sglang launch --concurrency "
            f"{answers} --verifier {plan.lookahead.verifier}, or --max-running-requests "
            f"{answers * one + policy.SPARE} where the server is started)",
        )
