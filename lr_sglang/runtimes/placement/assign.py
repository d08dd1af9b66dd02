"""Which role gets which GPUs, and how roles on the same GPU divide its memory. Pure computation.

SGLang's ``memory_fraction`` is a share of the memory that is *free when a server starts*: it holds
weights and KV memory, and the rest is left for forward passes. Servers on one GPU start one after
the other, so each one's fraction depends on those before it; ``again`` computes the fraction for a
restart beside the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
    """Places roles, in the order in which they start, the target first.

    The target gets as many GPUs as the others leave it (a power of two that divides its heads), the
    others one each; with fewer GPUs than roles the others share the last one, and on a single GPU
    all share it.

    Args:
        gpus: free memory of each, in GiB.

    Raises:
        ConfigError: it does not fit.
    """
    if not gpus:
        raise ConfigError("there is no GPU to place the runtimes on", hint="see lr-sglang doctor")
    why = ""
    for layout in _layouts(needs, len(gpus)):
        places, lack = _split(layout, needs, gpus)
        if not lack:
            return places
        why = why or lack
    if why:
        hint = (
            "quantization = 'fp8', smaller models, judge = 'target' (no third model), or more GPUs"
        )
        raise ConfigError(f"the runtimes do not fit: {why}", hint=hint)
    first, *others = needs
    role = next((other for other in others if needs[other].parallel), first)
    hint = "only the target is placed on several: name this one's 'gpus'" if role != first else ""
    message = f"it asks for {needs[role].parallel} GPUs, of {len(gpus)} that it could have"
    raise ConfigError(message, role=role, hint=hint)


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
        runtime, numbers = runtimes[role], tuple(rest[number] for number in where.gpus)
        runtimes[role] = runtime.replace(
            gpus=numbers,
            tensor_parallel=len(numbers) // runtime.data_parallel,
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


def again(fractions: Mapping[str, float], role: str, up: Collection[str]) -> float:
    """The fraction with which one server of a GPU is restarted, so that it gets as much memory as
    before.

    Args:
        fractions: of the servers on one GPU, in the order in which they were started.
        up: the servers that hold their memory now.
    """
    free, shares = 1.0, {}
    for name, fraction in fractions.items():
        shares[name] = free * fraction
        free -= shares[name]
    now = 1.0 - sum(share for name, share in shares.items() if name in up and name != role)
    return round(min(0.95, shares[role] / now), 3)


Layout = Mapping[str, tuple[int, ...]]


def _layouts(needs: Mapping[str, Need], count: int) -> Iterator[Layout]:
    """The possible layouts, the best first."""
    first, *others = needs
    if any(needs[other].parallel > 1 for other in others):
        return  # a role other than the target needs several GPUs: it must name them itself
    powers = [size for size in (8, 4, 2, 1) if size <= count and _divides(size, needs[first])]
    left = count - len(others)
    for size in [p for p in powers if p <= left] + [p for p in reversed(powers) if p > left]:
        free = list(range(size, count)) or list(range(count))
        yield {
            first: tuple(range(size)),
            **{other: (free[n % len(free)],) for n, other in enumerate(others)},
        }


def _divides(size: int, one: Need) -> bool:
    return (
        size == one.parallel
        if one.parallel
        else one.heads % size == 0 and (bool(one.heads) or size <= 2)
    )


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
