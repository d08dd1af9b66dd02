"""The servers of variants: which variants share them, their placement, whether several sets can run
at once, and their caches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil  # type: ignore[import-untyped]  # SGLang brings it

from lr_sglang.bench.variants import Variant
from lr_sglang.config import Deployment, Runtime
from lr_sglang.engine.transport import FLUSH_SECONDS
from lr_sglang.errors import LookaheadError, RuntimeDown
from lr_sglang.runtimes.launching import flags
from lr_sglang.runtimes.placement import gpus, memory

# GiB for a server on a CPU: with pocket models 0.9 to 1.5 (PSS) were measured, and a body's weights
# come to that.
PER_SERVER = 2.0
MOST_MEMORY = 0.8  # share of the free memory that servers may take


def server_sets(of: Sequence[Variant]) -> list[list[Variant]]:
    """Groups of variants that can share servers, because only their numbers of requests differ."""
    sets: dict[str, list[Variant]] = {}
    for one in of:
        name = "\n".join(server_key(role, runtime) for role, runtime in one.runtimes().items())
        sets.setdefault(name, []).append(one)
    return list(sets.values())


def needed_runtimes(of: Sequence[Variant], beside: Sequence[Variant] = ()) -> Deployment:
    """The runtimes that a set of variants uses, with slots for the variant that needs most.

    Args:
        beside: variants of other sets that run at the same time, and share the servers that are
            equal.
    """
    each = [one.plan.needed([one.mode], one.concurrency) for one in of]
    room: dict[str, int] = {}
    for deployment in (*each, *(one.plan.needed([one.mode], one.concurrency) for one in beside)):
        for role, runtime in deployment.runtimes.items():
            name = server_key(role, runtime)
            room[name] = max(room.get(name, 0), runtime.max_running_requests or 0)
    used = {role: one for deployment in reversed(each) for role, one in deployment.runtimes.items()}
    runtimes = {
        role: one
        if one.url
        else one.replace(max_running_requests=room[server_key(role, one)] or None)
        for role in of[0].plan.deployment.runtimes
        if (one := used.get(role))
    }
    shared = {
        role: owner
        for deployment in each
        for role, owner in deployment.shared.items()
        if role not in runtimes
    }
    return each[0].replace(runtimes=runtimes, shared=shared)


def spared(of: Sequence[Variant], needed: Deployment) -> str:
    """As ``Plan.spared``, of variants that share these servers."""
    if "draft" in needed.runtimes:
        return ""
    return next(filter(None, (one.plan.spared([one.mode]) for one in of)), "")


def server_key(role: str, runtime: Runtime) -> str:
    """A key that is equal for runtimes that can share a server; it ignores their numbers of
    requests.
    """
    return (
        f"{role} {json.dumps({**runtime.to_dict(), 'max_running_requests': None}, sort_keys=True)}"
    )


def placed_here(
    deployment: Deployment, unseen: bool = False, machine: Sequence[gpus.Gpu] = ()
) -> Deployment:
    """A copy with GPUs of this machine for every runtime that is to be started and names none.

    Args:
        unseen: whether runtimes with device ``cuda`` count as on GPUs even if this machine has
            none.
        machine: the GPUs of another machine, which runtimes that name theirs must fit too.

    Raises:
        ConfigError: they do not fit.
    """
    if machine:
        free = [gpu.free for gpu in machine]
        takes = {
            role: not one.url and flags.takes_gpu(one) for role, one in deployment.runtimes.items()
        }
        made = memory.with_places(deployment, free, takes)
        memory.check_gpus(made, free)
        return made
    # Runtimes with a URL or with GPUs are not placed; if there are no others, this saves the second
    # of a GPU query.
    asking = {
        role: one for role, one in deployment.runtimes.items() if not one.url and not one.gpus
    }
    on_gpu = {
        role: (unseen and one.device == "cuda") or flags.device(one, role) == "cuda"
        for role, one in asking.items()
    }
    here = gpus.visible() if any(on_gpu.values()) else []
    free = [gpu.free for gpu in here]
    return memory.with_places(deployment, free, on_gpu) if here else deployment


def together_or_in_turns(asked: str, needed: Sequence[Deployment]) -> tuple[str, str]:
    """Whether the sets of servers run ``together`` or in ``blocks``, and why."""
    if len(needed) == 1:
        return "together", "all variants share their servers"
    if asked != "auto":
        return asked, "chosen by bench.servers"
    roles = [item for deployment in needed for item in deployment.runtimes.items()]
    ours = {server_key(role, runtime): runtime for role, runtime in roles if not runtime.url}
    # A runtime that names its GPUs needs no query, so that another machine can print the plan.
    if any(
        one.gpus or one.device == "cuda" or flags.device(one) == "cuda" for one in ours.values()
    ):
        return (
            "blocks",
            "a server on a GPU takes a share of the free memory, so two would have smaller KV "
            "caches",
        )
    wanted = PER_SERVER * len(ours)
    there = psutil.virtual_memory().available / memory.GIB
    why = f"{len(ours)} servers take about {wanted:.1f} GiB; {there:.1f} GiB are free"
    return "together" if wanted <= MOST_MEMORY * there else "blocks", why


class Caches:
    """Flushes the caches of runtimes, so that no variant finds prefixes of another variant."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.warn = warn
        self.kept: set[str] = set()  # roles whose cache could not be emptied

    def empty(self, roles: Mapping[str, Any]) -> None:
        """Flushes the caches of these runtimes; warns once of a role whose cache stayed full, and
        no longer waits for that one.
        """
        for role, backend in roles.items():
            try:
                backend.flush_cache(0.0 if role in self.kept else FLUSH_SECONDS)
            except RuntimeDown:
                if role == "target":
                    raise  # answers continue without the other roles
            except LookaheadError as error:
                if role not in self.kept:
                    self.kept.add(role)
                    self.warn(f"{role}: its cache was not emptied at a turn ({error.message})")
