"""Whether two sets of servers can be up at once on this machine."""

from __future__ import annotations

from collections.abc import Iterable

from lr_sglang.config import Runtime
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes.placement import memory

# GiB that the processes of a server on a CPU take; of four of the pocket models 0.9 to 1.5 each were measured (PSS).
PROCESSES = 1.6
# On a CPU weights are in float32, and the token layer's model beside them.
WIDER = 2.0
# The share of what is free that servers may take.
MOST = 0.8


def on_cpu(runtimes: Iterable[Runtime]) -> float:
    """GiB of memory that servers on a CPU take; infinite where nobody knows how large a model is."""
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
