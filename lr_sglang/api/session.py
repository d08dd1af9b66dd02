"""The runtimes of one command: starts them (or attaches), connects, checks their memory, and stops
them.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lr_sglang.algorithm import policy
from lr_sglang.api.configuration import Plan
from lr_sglang.config import ROLES, Deployment, Role, Runtime
from lr_sglang.runtimes import Fleet, ProgressEvent, advice
from lr_sglang.runtimes.attach import faults
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
        caches = ", ".join(
            dict.fromkeys(backend.facts.prefix_cache for backend in self.roles.values())
        )
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


@dataclass(frozen=True)
class Wanted:
    """Answers that runtimes are to make: so many at a time, in any of these modes."""

    plan: Plan
    modes: Collection[str]
    answers: int


def tell_faults(roles: Mapping[str, Any], plan: Plan, warn: Callable[[str], None]) -> None:
    """Warns of what is wrong with runtimes from the start, as far as these answers may notice."""
    for text in faults(roles, drawn=not plan.deployment.sampling.greedy):
        warn(text)


def tell_room(
    roles: Mapping[str, Any], wanted: Sequence[Wanted], warn: Callable[[str], None]
) -> None:
    """Warns of runtimes that run fewer requests at a time than the answers can have, and of token
    budgets that no context holds.
    """
    for text in (*short_of_room(roles, wanted), *beyond_context(roles, wanted[0].plan)):
        warn(text)


def short_of_room(roles: Mapping[str, Any], wanted: Sequence[Wanted]) -> Iterator[str]:
    """A warning for each runtime that has fewer slots than the answers can have branches."""
    for slots in dict.fromkeys(backend.slots for backend in roles.values()):
        sharing = [role for role, backend in roles.items() if backend.slots is slots]
        facts = roles[sharing[0]].facts
        needs = [found for one in wanted if (found := _need(sharing, one))]
        total, each, answers, depth = max(needs, default=(0, 0, 0, 0))
        if facts.room is None or total <= facts.room:
            continue
        at = f" at depth {depth}" if each > 1 else ""
        have = f"an answer{at} can have {each}"
        if each <= facts.room:
            have = f"{answers} answers{at} can have {total}, so {facts.room // each} have room"
        more = f"its memory holds {facts.kv_tokens} tokens"
        if facts.room == facts.max_running_requests:
            deep = f" --depth {depth}" if each > 1 else ""
            more = (
                f"lr-sglang launch{deep} --concurrency {answers}, or --max-running-requests "
                f"{total + policy.SPARE_SLOTS * len(sharing)} where it is started, gives it more"
            )
        yield (
            f"{' and '.join(sharing)}: it runs {facts.room} requests at a time, and {have}: the "
            f"others wait; {more}"
        )


def _need(sharing: Sequence[str], wanted: Wanted) -> tuple[int, int, int, int] | None:
    """Requests at a time of all answers and of each to a runtime with these roles, the number of
    answers, and their depth; None if they need none of the roles.
    """
    plan = wanted.plan
    asked = {role for mode in wanted.modes for role in plan.roles(mode)}
    here: list[Role] = [role for role in ROLES if role in asked and role in sharing]
    if not here:
        return None
    each = plan.branches(here, wanted.modes)
    return wanted.answers * each, each, wanted.answers, plan.deployment.lookahead.depth


def beyond_context(roles: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """A warning for each token budget that the target's context does not hold, if it is not the
    model family's.
    """
    limits = plan.deployment.limits
    context = roles["target"].facts.context
    usual = advice.family(plan.models.get("target", "")).get("max_tokens")
    # a prompt has a token at least
    most = {"max_tokens": context - 1, "max_total_tokens": context}
    for name, longest in most.items():
        value = getattr(limits, name)
        if value is not None and value > longest and (name != "max_tokens" or value != usual):
            yield (
                f"limits.{name} {value} is more than the target's context holds: answers end at "
                f"{context} tokens, their prompt included"
            )
