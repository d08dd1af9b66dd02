"""Which role gets which GPUs, and how roles on the same GPU divide its memory. Pure computation.

SGLang's ``memory_fraction`` is a share of the memory that is *free when a server starts*: it holds
weights and KV memory, and the rest is left for forward passes. Servers on one GPU start one after
the other, so each one's fraction depends on those before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lr_sglang.config import Deployment, Runtime
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes.placement.memory import Need, need

# GiB of a GPU that a server needs beside weights and KV memory: CUDA itself, its graphs, one
# forward pass.
OVERHEAD = 4.0
# Tokens that each role must have room for, or the placement is refused: a long answer, and its
# branches.
LEAST_TOKENS = 16_384
# The largest share of a GPU for weights and KV memory of all its servers together.
MAX_SHARE = 0.9


@dataclass(frozen=True)
class Place:
    """Where a role runs: its GPUs, and its share of the memory that is free on each of them when it
    starts.
    """

    gpus: tuple[int, ...]
    memory_fraction: float


def place(needs: Mapping[str, Need], gpus: Sequence[float]) -> dict[str, Place]:
    """Places roles, in the order in which they start, the target first: one on each GPU; roles for
    which none is left share the last one.

    Args:
        gpus: free memory of each, in GiB.

    Raises:
        ConfigError: it does not fit, or a role needs several GPUs.
    """
    if not gpus:
        raise ConfigError("there is no GPU to place the runtimes on", hint="see lr-sglang doctor")
    for role, one in needs.items():
        if one.parallel > 1:
            why = f"'tensor_parallel' and 'data_parallel' ask for {one.parallel} GPUs"
            raise ConfigError(why, role=role, hint="name its 'gpus'")
    layout = {role: (min(index, len(gpus) - 1),) for index, role in enumerate(needs)}
    places, lack = _split(layout, needs, gpus)
    if lack:
        hint = (
            "quantization = 'fp8', smaller models, judge = 'target' (no third model), or 'gpus' "
            "and 'memory_fraction' of your own choice, with several GPUs for the target"
        )
        raise ConfigError(f"the runtimes do not fit: {lack}", hint=hint)
    return places


def placed(deployment: Deployment, gpus: Sequence[float], on_gpu: Mapping[str, bool]) -> Deployment:
    """A copy in which every runtime that runs on GPUs names them and its ``memory_fraction``.

    GPUs named in the deployment stay. Runtimes that name none get the GPUs that no other runtime
    names.

    Args:
        on_gpu: by role, whether its runtime runs on GPUs.

    Raises:
        ConfigError: it does not fit, or the size of a model is unknown.
    """
    ours = {
        role: one for role, one in deployment.runtimes.items() if on_gpu.get(role) and not one.gpus
    }
    if not ours:
        return deployment
    named = {gpu for runtime in deployment.runtimes.values() for gpu in runtime.gpus}
    rest = [number for number in range(len(gpus)) if number not in named]
    if named and not rest:
        raise ConfigError(
            f"no GPU is left for {', '.join(ours)}: the others name all of them",
            hint="give 'gpus' for every runtime",
        )
    needs = {role: need(runtime, f"[runtimes.{role}]") for role, runtime in ours.items()}
    found = place(needs, [gpus[number] for number in rest])
    runtimes: dict[str, Runtime] = dict(deployment.runtimes)
    for role, where in found.items():
        runtime = runtimes[role]
        runtimes[role] = runtime.replace(
            gpus=tuple(rest[number] for number in where.gpus),
            memory_fraction=runtime.memory_fraction or where.memory_fraction,
        )
    return deployment.replace(runtimes=runtimes)


def fits(deployment: Deployment, gpus: Sequence[float]) -> bool:
    """Whether the GPUs that a deployment names exist and have memory for its runtimes."""
    layout = {role: runtime.gpus for role, runtime in deployment.runtimes.items()}
    needs = {
        role: need(runtime, f"[runtimes.{role}]") for role, runtime in deployment.runtimes.items()
    }
    there = {gpu for numbers in layout.values() for gpu in numbers} <= set(range(len(gpus)))
    return there and not _split(layout, needs, gpus)[1]


Layout = Mapping[str, tuple[int, ...]]


def _split(
    layout: Layout, needs: Mapping[str, Need], gpus: Sequence[float]
) -> tuple[dict[str, Place], str]:
    """The places of a layout, or what does not fit.

    Roles on one GPU get room for the same number of tokens: they all hold the same answers.
    """
    fractions = dict.fromkeys(layout, 1.0)
    for gpu, memory in enumerate(gpus):
        roles = [role for role, numbers in layout.items() if gpu in numbers]
        weights = {role: needs[role].weights / len(layout[role]) for role in roles}
        tokens = {
            role: needs[role].token * LEAST_TOKENS / 1024 / len(layout[role]) for role in roles
        }
        least, room = sum(tokens.values()), min(MAX_SHARE * memory, memory - OVERHEAD * len(roles))
        wanted = sum(weights.values()) + least
        if roles and wanted > room:
            total = wanted + memory - room
            return (
                {},
                f"{' and '.join(roles)} need {total:.0f} GiB of a GPU that has {memory:.0f} free",
            )
        free = memory
        for role in roles:
            static = weights[role] + (room - sum(weights.values())) * tokens[role] / least
            fractions[role] = min(
                fractions[role], static / free
            )  # the GPU with the least memory decides
            free -= static + (memory - room) / len(roles)
    return {
        role: Place(numbers, round(fractions[role] - 0.0005, 3)) for role, numbers in layout.items()
    }, ""
