"""How much GPU memory a model needs, by its configuration or its name, before anything is
downloaded; which role gets which GPUs, and how roles on the same GPU divide its memory.

SGLang's ``memory_fraction`` is a share of the memory that is *free when a server starts*: it holds
weights and KV memory, and the rest is left for forward passes. Servers on one GPU start one after
the other, so each one's fraction depends on those before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lr_sglang.config import Deployment, Runtime
from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.runtimes.placement import hybrid, models

GIB = 2**30
# Bytes of a parameter, by the quantisation in the runtime's settings, in the published model's name
# or in its configuration.
QUANTISED = (
    ("fp8", 1.0),
    ("w8a8", 1.0),
    ("int8", 1.0),
    ("awq", 0.6),
    ("gptq", 0.6),
    ("int4", 0.6),
    ("fp4", 0.6),
)
WIDE = {"float32": 4.0, "float": 4.0}

# A head that drafts from its target's hidden states, where its configuration is not here: its
# parameters over the square of the target's hidden size (Qwen3.5-27B-DFlash has 66, a head of one
# layer less), and the MiB of a token in five layers of 8 KV heads of 128.
HEAD = 80
HEAD_TOKEN = 5 * 2 * 8 * 128 * 2 / 2**20

_BILLIONS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])")
_SUFFIXES = re.compile(r"-(?:instruct|chat|base|it|fp8|dynamic|awq|gptq|int[48]|w8a8|hf)$")


@dataclass(frozen=True)
class Need:
    """The GPU memory that a runtime needs in all, on one GPU or several.

    Attributes:
        weights: GiB, those of a token layer's draft model too.
        token: MiB that one token takes in the KV memory.
        heads: attention heads, which tensor parallelism must divide; 0 is unknown.
        states: GiB of a hybrid's states.
    """

    weights: float
    token: float
    heads: int = 0
    states: float = 0.0

    @property
    def fixed(self) -> float:
        """GiB that do not depend on the number of tokens."""
        return self.weights + self.states


def runtime_need(runtime: Runtime, where: str = "runtime") -> Need:
    """The need of a runtime that we launch.

    Raises:
        ConfigError: neither a configuration here nor the model's name says how large it is.
    """
    model = _need(runtime.model, runtime, where)
    layer = runtime.token_layer
    if not layer.draft_model:
        draft = Need(0.0, 0.0)
    elif layer.algorithm == "standalone" or config_of(layer.draft_model) is not None:
        draft = _need(layer.draft_model, runtime.replace(quantization=""), where)
    else:
        hidden = int((config_of(runtime.model) or {}).get("hidden_size", 8192))
        draft = Need(HEAD * hidden**2 * 2 / GIB, HEAD_TOKEN)
    weights = runtime.data_parallel * (model.weights + draft.weights)
    states = runtime.data_parallel * _states(runtime)
    return Need(weights, model.token + draft.token, model.heads, states)


def _states(runtime: Runtime) -> float:
    """GiB of a hybrid's states: of running requests and of prefixes, and with a token layer one
    after every drafted token, until they are verified.
    """
    requests = runtime.max_running_requests or REQUESTS
    count = hybrid.COPIES["cuda"] * requests + 1
    layer = runtime.token_layer
    if layer.on:
        drafted = 1 + (layer.tokens or (BLOCK if layer.algorithm == "dflash" else LAYER_TOKENS))
        count += (requests + 1) * drafted
    return count * hybrid.state_bytes(config_of(runtime.model) or {}) / GIB


def _need(model: str, runtime: Runtime, where: str) -> Need:
    config = config_of(model)
    wide = WIDE.get(runtime.dtype, 2.0)
    said = (config or {}).get("quantization_config") or {}
    names = f"{runtime.quantization} {model} {said.get('quant_method', '')}".lower()
    width = next((size for name, size in QUANTISED if name in names), wide)
    if config is not None:
        heads = int(config["num_attention_heads"])
        kv = int(config.get("num_key_value_heads") or heads)
        head = int(config.get("head_dim") or config["hidden_size"] // heads)
        attending = int(config["num_hidden_layers"]) - hybrid.linear_layers(config)
        token = 2 * attending * kv * head * 2 / 2**20  # keys and values, two bytes each
        return Need(_weights(config, heads, kv, head) * width / GIB, token, heads)
    named = _BILLIONS.search(model.lower())
    if named is None:
        raise ConfigError(
            f"{where}: neither the name of {model} nor a file here says how much memory it needs",
            hint="give 'gpus' (and 'memory_fraction', where roles share one), or the path of "
            "its directory",
        )
    billions = float(named[1])
    # Without a configuration: as dense models with grouped attention, 0.06 to 0.25 MiB for 1 to 32
    # billion parameters.
    return Need(billions * 1e9 * width / GIB, 0.05 + 0.0065 * billions)


def config_of(model: str) -> Mapping[str, Any] | None:
    """The configuration, from a directory here or from the shape of the same name."""
    shape = models.shape_of(model).removeprefix(models.SHAPE) or _plain(model)
    if shape in models.shapes():
        return models.shapes()[shape]
    if models.is_body(model):
        return models.body_config(model)
    try:
        found = models.said(models.locate(model), "config.json")
    except LookaheadError:
        return None
    if not isinstance(found, dict):
        return None
    whole = {key: found[key] for key in ("quantization_config",) if key in found}
    found = {**whole, **found.get("text_config", found)}
    return (
        found
        if {"num_hidden_layers", "hidden_size", "num_attention_heads"} <= found.keys()
        else None
    )


def check_parallel(runtime: Runtime, where: str) -> None:
    """Checks that the GPUs which share a model's weights divide its attention heads.

    Raises:
        ConfigError: they do not; a model whose configuration is not here passes.
    """
    config = config_of(runtime.model) or {}
    shared = runtime.tensor_parallel
    if shared == 1 or "enable-dp-attention" in runtime.extra:
        return
    heads = int(config.get("num_attention_heads") or 0)
    kv = int(config.get("num_key_value_heads") or heads)
    if heads % shared == 0 and (not kv or kv % shared == 0 or shared % kv == 0):
        return
    fit = [n for n in range(1, heads + 1) if not heads % n and (not kv % n or not n % kv)]
    raise ConfigError(
        f"{where}: {shared} GPUs cannot share {heads} attention heads and {kv} KV heads of "
        f"{runtime.model}",
        hint=f"give {', '.join(map(str, fit[:5]))} GPUs, or data_parallel for replicas",
    )


def _plain(model: str) -> str:
    """``Qwen/Qwen2.5-7B-Instruct`` as the name of a shape: ``qwen2.5-7b``."""
    name = model.rpartition("/")[2].lower()
    while (shorter := _SUFFIXES.sub("", name)) != name:
        name = shorter
    return name


def _weights(config: Mapping[str, Any], heads: int, kv: int, head: int) -> float:
    """Parameters of a model by its configuration; the feed-forward part counts once for each
    expert. An image encoder does not count.
    """
    hidden = int(config["hidden_size"])
    inner = int(
        config.get("moe_intermediate_size") or config.get("intermediate_size") or 4 * hidden
    )
    experts = int(
        config.get("num_experts")
        or config.get("num_local_experts")
        or config.get("n_routed_experts")
        or 1
    )
    shared = int(config.get("shared_expert_intermediate_size") or 0)
    layers = int(config["num_hidden_layers"])
    linear = hybrid.linear_layers(config)
    attention = hidden * head * 2 * (heads + kv)
    delta = 0
    if linear:
        attention += hidden * head * heads  # the gate of its output
        delta = hybrid.parameters(config)
    forward = 3 * hidden * (inner * experts + shared)
    ends = (
        int(config.get("vocab_size", 0)) * hidden * (1 if config.get("tie_word_embeddings") else 2)
    )
    return (layers - linear) * attention + linear * delta + layers * forward + ends


# GiB of a GPU that a server needs beside weights and KV memory: CUDA itself, its graphs, one
# forward pass.
OVERHEAD = 4.0
# Requests at a time of a server for one answer at the default depth; and the tokens that are
# drafted per verification, with DFlash and with other token layers.
REQUESTS = 8
BLOCK = 15
LAYER_TOKENS = 8
# Tokens that each role must have room for, or the placement is refused: a long answer, and its
# branches.
LEAST_TOKENS = 16_384
# The largest share of a GPU for weights and KV memory of all its servers together.
MAX_SHARE = 0.9


_SMALLER = (
    "quantization = 'fp8', smaller models, judge = 'target' (no third model), or 'gpus' and "
    "'memory_fraction' of your own choice, with several GPUs for the target"
)


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
        ConfigError: it does not fit.
    """
    if not gpus:
        raise ConfigError("there is no GPU to place the runtimes on", hint="see lr-sglang doctor")
    layout = {role: (min(index, len(gpus) - 1),) for index, role in enumerate(needs)}
    places, lack = _split(layout, needs, gpus)
    if lack:
        raise ConfigError(f"the runtimes do not fit: {lack}", hint=_SMALLER)
    return places


def with_places(
    deployment: Deployment, gpus: Sequence[float], on_gpu: Mapping[str, bool]
) -> Deployment:
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
    for role, runtime in ours.items():
        count = runtime.tensor_parallel * runtime.data_parallel
        if count > 1:
            raise ConfigError(
                f"[runtimes.{role}]: it takes {count} GPUs (tensor_parallel x data_parallel) and "
                "names none: a runtime without 'gpus' gets one",
                hint=f"name them: gpus = {list(range(count))}",
            )
    named = {gpu for runtime in deployment.runtimes.values() for gpu in runtime.gpus}
    rest = [number for number in range(len(gpus)) if number not in named]
    if named and not rest:
        raise ConfigError(
            f"no GPU is left for {', '.join(ours)}: the others name all of them",
            hint="give 'gpus' for every runtime",
        )
    needs = {role: runtime_need(runtime, f"[runtimes.{role}]") for role, runtime in ours.items()}
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
    """Whether the GPUs that a deployment names exist and have memory for its runtimes; runtimes
    that name none are placed first.
    """
    try:
        check_gpus(with_places(deployment, gpus, dict.fromkeys(deployment.runtimes, True)), gpus)
    except ConfigError:
        return False
    return True


def check_gpus(deployment: Deployment, gpus: Sequence[float]) -> None:
    """Checks the GPUs that runtimes name.

    Raises:
        ConfigError: there is no such GPU, or it has too little memory for its runtimes; or the size
            of a model is unknown.
    """
    layout = {role: one.gpus for role, one in deployment.runtimes.items() if one.gpus}
    for role, numbers in layout.items():
        if max(numbers) >= len(gpus):
            raise ConfigError(
                f"[runtimes.{role}]: gpus = {list(numbers)}, but the machine has {len(gpus)}",
                hint="they count from 0; another deployment, or GPUs of your own choice: "
                f"-o runtimes.{role}.gpus=0",
            )
    needs = {role: runtime_need(deployment.runtimes[role], f"[runtimes.{role}]") for role in layout}
    if lack := _split(layout, needs, gpus)[1]:
        raise ConfigError(f"the runtimes do not fit: {lack}", hint=_SMALLER)


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
        fixed = {role: needs[role].fixed / len(layout[role]) for role in roles}
        tokens = {
            role: needs[role].token * LEAST_TOKENS / 1024 / len(layout[role]) for role in roles
        }
        least = sum(tokens.values())
        room = min(MAX_SHARE * memory, memory - OVERHEAD * len(roles))
        wanted = sum(fixed.values()) + least
        if roles and wanted > room:
            total = wanted + memory - room
            return (
                {},
                f"{' and '.join(roles)} need{'s' * (len(roles) == 1)} {total:.0f} GiB of a GPU "
                f"that has {memory:.0f} free",
            )
        free = memory
        for role in roles:
            static = fixed[role] + (room - sum(fixed.values())) * tokens[role] / least
            # the GPU with the least memory decides
            fractions[role] = min(fractions[role], static / free)
            free -= static + (memory - room) / len(roles)
    return {
        role: Place(numbers, round(fractions[role] - 0.0005, 3)) for role, numbers in layout.items()
    }, ""
