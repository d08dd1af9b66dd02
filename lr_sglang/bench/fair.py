"""A baseline with the GPUs that lookahead has: the target alone would otherwise be compared on fewer."""

from __future__ import annotations

from lr_sglang.config import Deployment
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes.placement import memory

WAYS = ("replicas", "tp")


def baseline(deployment: Deployment, way: str) -> tuple[Deployment, str]:
    """The deployment of modes without lookahead, and what tables say of it.

    Args:
        way: ``replicas`` of the target, as many as there is room for, or ``tp``: one over more GPUs.

    Raises:
        ConfigError: the runtimes are not on GPUs that the deployment names, or those are not enough for more.
    """
    target = deployment.runtimes["target"]
    if any(runtime.url for runtime in deployment.runtimes.values()):
        raise ConfigError("--fair: runtimes at a URL are where they are", hint="give models, or a deployment file")
    if not all(runtime.gpus for runtime in deployment.runtimes.values()):
        raise ConfigError(
            f"--fair {way}: it is about GPUs, and these runtimes are on none",
            hint="compare on a machine with GPUs, or leave --fair out",
        )
    every = tuple(sorted({gpu for runtime in deployment.runtimes.values() for gpu in runtime.gpus}))
    mine = len(target.gpus)
    count = len(every) // mine * mine if way == "replicas" else _parallel(deployment, len(every))
    if count <= mine:
        other = "tp" if way == "replicas" else "replicas"
        raise ConfigError(
            f"--fair {way}: lookahead has {len(every)} GPUs, the target {mine} of them; that is room for no more",
            hint=f"--fair {other}, or other GPUs for the roles",
        )
    gpus = (*target.gpus, *(gpu for gpu in every if gpu not in target.gpus))[:count]
    if way == "replicas":
        copies = count // mine * target.data_parallel
        found, said = target.replace(gpus=gpus, data_parallel=copies), f"{copies} replicas"
    else:
        size = count // target.data_parallel
        found, said = target.replace(gpus=gpus, tensor_parallel=size), f"tensor parallel {size}"
    others = {role: one for role, one in deployment.runtimes.items() if role != "target"}
    said += f" on {count} GPUs"
    return deployment.replace(runtimes={"target": found.replace(memory_fraction=None), **others}), said


def _parallel(deployment: Deployment, most: int) -> int:
    """GPUs for one target: a power of two, times its replicas, that divides its attention heads."""
    target = deployment.runtimes["target"]
    heads = memory.need(target, "[runtimes.target]").heads
    sizes = [size for size in (8, 4, 2, 1) if size * target.data_parallel <= most and (not heads or heads % size == 0)]
    return max(sizes, default=1) * target.data_parallel
