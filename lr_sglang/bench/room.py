"""Whether two sets of servers can be up at once on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lr_sglang.bench.variants import alike
from lr_sglang.config import Deployment, Runtime
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes.launching import platforms
from lr_sglang.runtimes.placement import memory

# GiB that the processes of a server on a CPU take; of four of the pocket models 0.9 to 1.5 each were measured (PSS).
PROCESSES = 1.6
# On a CPU weights are in float32, and the token layer's model beside them.
WIDER = 2.0
# The share of what is free that servers may take.
MOST = 0.8


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


def servers(asked: str, needed: Sequence[Deployment]) -> tuple[str, str]:
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
