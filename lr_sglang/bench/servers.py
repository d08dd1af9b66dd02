"""The servers of variants: which variants share them, whether sets of them can be up at once, and their caches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lr_sglang.bench.variants import Variant
from lr_sglang.config import Deployment, Runtime
from lr_sglang.errors import ConfigError, LookaheadError, RuntimeDown
from lr_sglang.runtimes.launching import platforms
from lr_sglang.runtimes.placement import memory

# GiB that the processes of a server on a CPU take; of four of the pocket models 0.9 to 1.5 each were measured (PSS).
PROCESSES = 1.6
WIDER = 2.0  # on a CPU weights are in float32, and the token layer's model beside them
MOST = 0.8  # the share of what is free that servers may take
FLUSH_SECONDS = 5.0  # a server empties its cache only when it has nothing to do


def server_sets(of: Sequence[Variant]) -> list[list[Variant]]:
    """Variants that can share their servers: they start them with the same settings but for the number of requests."""
    sets: dict[str, list[Variant]] = {}
    for one in of:
        name = "\n".join(alike(role, runtime) for role, runtime in one.runtimes().items())
        sets.setdefault(name, []).append(one)
    return list(sets.values())


def needed(of: Sequence[Variant]) -> Deployment:
    """The runtimes that a set of variants uses, with room for the one that needs most."""
    found = [one.plan.needed(one.modes, one.concurrency) for one in of]
    runtimes: dict[str, Runtime] = {}
    shared: dict[str, str] = {}
    for deployment in found:
        shared |= deployment.shared
        for role, runtime in deployment.runtimes.items():
            before = runtimes.setdefault(role, runtime)
            if not runtime.url:
                slots = max(before.max_running_requests or 0, runtime.max_running_requests or 0)
                runtimes[role] = before.replace(
                    max_running_requests=slots or None, extra={**before.extra, **runtime.extra}
                )
    order = [role for role in of[0].plan.deployment.runtimes if role in runtimes]
    return found[0].replace(runtimes={role: runtimes[role] for role in order}, shared=shared)


def levelled(deployments: Sequence[Deployment]) -> list[Deployment]:
    """Servers that several sets would start alike are started once: with room for the set that needs most."""
    most: dict[str, int] = {}
    for deployment in deployments:
        for role, runtime in deployment.runtimes.items():
            most[alike(role, runtime)] = max(most.get(alike(role, runtime), 0), runtime.max_running_requests or 0)
    return [
        deployment.replace(
            runtimes={
                role: runtime
                if runtime.url
                else runtime.replace(max_running_requests=most[alike(role, runtime)] or None)
                for role, runtime in deployment.runtimes.items()
            }
        )
        for deployment in deployments
    ]


def alike(role: str, runtime: Runtime) -> str:
    """The same for runtimes that can be one server; how many requests they take is not looked at."""
    return f"{role} {json.dumps(runtime.replace(max_running_requests=None).to_dict(), sort_keys=True)}"


def on_cpu(runtimes: Iterable[Runtime]) -> float:
    """GiB of memory that servers on a CPU take; infinite where the size of a model is unknown."""
    total = 0.0
    for runtime in runtimes:
        try:
            total += PROCESSES + WIDER * memory.need(runtime).weights
        except ConfigError:
            return float("inf")
    return total


def free() -> float:
    """GiB of this machine's memory that can be had."""
    import psutil  # type: ignore[import-untyped]  # SGLang brings it

    return float(psutil.virtual_memory().available) / memory.GIB


def together_or_in_turns(asked: str, needed: Sequence[Deployment]) -> tuple[str, str]:
    """Whether the sets of servers are up together or in turns, and why."""
    if len(needed) == 1:
        return "together", "all variants share their servers"
    if asked != "auto":
        return asked, "as --servers says"
    ours = {}
    for deployment in needed:
        for role, runtime in deployment.runtimes.items():
            if not runtime.url:
                ours[alike(role, runtime)] = runtime
    # One that names its GPU is not asked for: a plan can be looked at on another machine.
    if any(one.gpus or one.device == "cuda" or platforms.device(one) == "cuda" for one in ours.values()):
        return (
            "blocks",
            "a server on a GPU takes its share of what is free, and two would have less cache each",
        )
    wanted, there = on_cpu(ours.values()), free()
    fits = wanted <= MOST * there
    how = "together" if fits else "blocks"
    return how, f"{len(ours)} servers take about {wanted:.1f} GiB; {there:.1f} GiB are free"


class Caches:
    """Empties the caches of runtimes, so that no variant finds what another one left there."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.warn = warn
        self.kept: set[str] = set()  # roles whose cache could not be emptied

    def empty(self, roles: Mapping[str, Any]) -> None:
        """Those of the runtimes that the next variant uses.

        Raises:
            RuntimeDown: the target is gone.
        """
        for role, backend in roles.items():
            try:
                self._one(role, backend)
            except RuntimeDown:
                if role == "target":
                    raise  # without the others answers go on
            except LookaheadError as error:
                if role not in self.kept:
                    self.kept.add(role)
                    self.warn(f"{role}: its cache is not emptied between modes ({error.message})")

    def _one(self, role: str, backend: Any) -> None:
        deadline = time.monotonic() + (0.0 if role in self.kept else FLUSH_SECONDS)
        while True:
            try:
                backend.flush_cache()
                return
            except RuntimeDown:
                raise
            except LookaheadError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)
