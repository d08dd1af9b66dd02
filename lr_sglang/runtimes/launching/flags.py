"""Makes the command that starts a runtime from its description; nothing is started here."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from lr_sglang.config import Runtime
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes.launching import token_layer
from lr_sglang.runtimes.launching.ports import HOST
from lr_sglang.runtimes.placement import bodies, shapes

Device = Literal["cpu", "cuda"]
Flags = dict[str, Any]

# Fields of a runtime that become a flag if they differ from their default.
FIELDS = {
    "tokenizer": "tokenizer-path",
    "tensor_parallel": "tp-size",
    "data_parallel": "dp-size",
    "memory_fraction": "mem-fraction-static",
    "dtype": "dtype",
    "quantization": "quantization",
    "context_length": "context-length",
    "max_running_requests": "max-running-requests",
}
# SGLang chooses both by the model's chat template, and goes without one that it does not know.
PARSERS = {"tool-call-parser": "auto", "reasoning-parser": "auto"}
# Deterministic inference turns the radix cache off with every other backend (SGLang's
# RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND). Of these triton runs on every generation of
# GPUs.
REPEATABLE_BACKENDS = ("triton", "fa3", "fa4")
# SGLang's name for a loader from outside: ours, which computes a body (see ``pocket.loader``).
IN_MEMORY = "private"
PRECOMPILE = "SGLANG_JIT_DEEPGEMM_PRECOMPILE"
# Flags of `extra` with which a server uses other GPUs than tensor_parallel x data_parallel says.
SPREADING = frozenset(("pp-size", "pipeline-parallel-size", "base-gpu-id", "gpu-id-step"))

_ALIASES = {
    "tensor_parallel": ("tp", "tensor-parallel-size"),
    "data_parallel": ("dp", "data-parallel-size"),
}

# Flags that `extra` may not set, and what to do instead.
_INSTEAD = {
    "servers are for this machine only": ("host",),
    "write the flags into 'extra' one by one": ("config",),
    "start the server yourself and give its 'url' and 'api_key_env'": ("api-key", "admin-api-key"),
    "use 'model'": ("model-path", "model"),
    "use 'port'": ("port",),
    "use 'device'": ("device",),
    "use 'repeatable'": ("enable-deterministic-inference",),
    "use 'token_layer'": (
        *("speculative-algorithm", "speculative-draft-model", "speculative-draft-model-path"),
        *("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"),
    ),
    **{f"use {name!r}": (flag, *_ALIASES.get(name, ())) for name, flag in FIELDS.items()},
}
OWNED = {flag: hint for hint, names in _INSTEAD.items() for flag in names}


@dataclass(frozen=True)
class Command:
    """A command: its arguments, and variables to add to the environment."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Platform:
    """Flags and variables for a kind of machine; the runtime's own flags have precedence."""

    device: Device
    flags: Flags = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    module: str = "sglang.launch_server"


def command(
    runtime: Runtime,
    port: int,
    platform: Platform,
    *,
    model: str | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
    where: str = "runtime",
    target: bool = False,
) -> Command:
    """The command that starts a server for a runtime.

    Args:
        port: that the server listens on.
        platform: see ``platforms.platform``.
        model: what to load, where ``runtime.model`` is not yet a path that SGLang knows (see
            ``models.locate``).
        environ: our own variables: ``runtime.gpus`` counts within CUDA_VISIBLE_DEVICES, a given CXX
            is kept.
        where: the runtime's name in an error.
        target: whether it is the target, which answers requests with tools that the endpoint passes
            on.

    Raises:
        ConfigError: settings that exclude each other.
    """
    extra, layer, on_gpu = extras(runtime, where), runtime.token_layer, platform.device == "cuda"
    if runtime.gpus and not on_gpu:
        raise ConfigError(
            f"{where}: 'gpus' are given for a runtime on the CPU", hint="leave them out"
        )
    token_layer.check(runtime, platform.device, where)
    flags: Flags = {
        "model-path": model or runtime.model,
        "host": HOST,
        "port": port,
        "device": platform.device,
    }
    flags["skip-server-warmup"] = True  # our own first request warms the server
    flags |= (PARSERS if target else {}) | platform.flags
    if on_gpu and runtime.repeatable:
        flags |= _repeatable(extra, where)
    default = Runtime(model="any")
    given = {
        flag: (getattr(runtime, name), getattr(default, name)) for name, flag in FIELDS.items()
    }
    flags |= {
        flag: value for flag, (value, usual) in given.items() if value != usual and value != ""
    }
    if layer.on:  # SGLang has no mixed chunks with a token layer
        flags |= {"enable-mixed-chunk": None} | token_layer.flags(layer, where)
    flags |= extra
    flags = _load_formats(flags) | flags
    if not on_gpu and flags.get("speculative-adaptive"):
        # SGLang would capture decode graphs for each number of steps, and a CPU has none.
        flags.setdefault("disable-decode-cuda-graph", True)

    env = platform.env | token_layer.environment(layer)
    unless_given: dict[str, str] = {}
    if runtime.gpus:
        env["CUDA_VISIBLE_DEVICES"] = _devices(runtime, environ.get("CUDA_VISIBLE_DEVICES"), where)
        unless_given["CUDA_DEVICE_ORDER"] = (
            "PCI_BUS_ID"  # the order of nvidia-smi; CUDA's own begins with the fastest
        )
    if on_gpu and "fp8" in f"{flags['model-path']} {runtime.quantization}".lower():
        # On Hopper SGLang would compile DeepGEMM for all batch sizes at its first start, which
        # takes minutes. Without, it compiles each size at its first use.
        unless_given[PRECOMPILE] = "0"
    env |= {name: value for name, value in unless_given.items() if name not in environ}
    # -P: no file of the current directory may shadow a module that SGLang imports.
    return Command((sys.executable, "-P", "-m", platform.module, *arguments(flags)), env)


def extras(runtime: Runtime, where: str = "runtime") -> Flags:
    """``runtime.extra`` under the names that SGLang's command line uses.

    Raises:
        ConfigError: a flag that has a field of its own.
    """
    named = token_layer.named(runtime.extra)
    for name in named:
        if name in OWNED:
            raise ConfigError(f"{where}: 'extra' may not set --{name}", hint=OWNED[name])
    return named


def meeting(runtime: Runtime, where: str = "runtime") -> str:
    """The flag for the port at which a server's processes meet; empty if the server must choose
    several itself.
    """
    return (
        "" if runtime.data_parallel > 1 or "nccl-port" in extras(runtime, where) else "--nccl-port"
    )


def arguments(flags: Flags) -> list[str]:
    """Flags as a command line: true is a bare flag, false or None leaves it out, a list gives
    several values.
    """
    line: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        values = () if value is True else value if isinstance(value, (list, tuple)) else (value,)
        line += [
            f"--{name}",
            *(json.dumps(one) if isinstance(one, Mapping) else str(one) for one in values),
        ]
    return line


def computes_bodies(runtime: Runtime, device: Device) -> bool:
    """Whether a server computes its bodies in memory instead of reading a file: on a GPU, or if
    asked for.
    """
    return bool(
        extras(runtime).get("load-format", IN_MEMORY if device == "cuda" else "auto") == IN_MEMORY
    )


def _load_formats(flags: Flags) -> Flags:
    """Load formats of models without weight files, for the token layer's draft model too."""
    target = _load_format(flags["model-path"])
    found: Flags = {} if target == "auto" else {"load-format": target}
    draft = flags.get("speculative-draft-model-path") or flags.get("speculative-draft-model")
    if isinstance(draft, str) and (found or _load_format(draft) != "auto"):
        found["speculative-draft-load-format"] = _load_format(draft)
    return found


def _load_format(model: str) -> str:
    """The load format of a model: random weights for a shape, computed ones for a body
    in memory.
    """
    return (
        "dummy"
        if shapes.is_shape(model)
        else IN_MEMORY
        if bodies.without_weights(model)
        else "auto"
    )


def _repeatable(extra: Flags, where: str) -> Flags:
    """Flags for repeatable answers: deterministic inference needs a named attention backend."""
    backend = extra.get("attention-backend", REPEATABLE_BACKENDS[0])
    if backend not in REPEATABLE_BACKENDS:
        raise ConfigError(
            f"{where}: with 'repeatable', attention backend {backend!r} would turn the prefix "
            "cache off",
            hint=f"take one of {', '.join(REPEATABLE_BACKENDS)}",
        )
    return {"attention-backend": backend, "enable-deterministic-inference": True}


def _devices(runtime: Runtime, visible: str | None, where: str) -> str:
    """The runtime's GPUs as CUDA_VISIBLE_DEVICES names them, counted within those that are visible
    here.
    """
    needed, given = runtime.tensor_parallel * runtime.data_parallel, len(runtime.gpus)
    if given < needed or (given > needed and not SPREADING & set(extras(runtime, where))):
        used = (
            "but tensor_parallel x data_parallel"
            if given < needed
            else "of which tensor_parallel x data_parallel"
        )
        message = f"{where}: gpus = {list(runtime.gpus)}, {used} = {needed}" + " would be used" * (
            given > needed
        )
        raise ConfigError(message, hint="name as many GPUs as that, or change 'tensor_parallel'")
    if visible is None:
        return ",".join(map(str, runtime.gpus))
    allowed = [name.strip() for name in visible.split(",") if name.strip()]
    if max(runtime.gpus) >= len(allowed):
        raise ConfigError(
            f"{where}: gpus = {list(runtime.gpus)}, but only {len(allowed)} are visible",
            hint=f"CUDA_VISIBLE_DEVICES is {visible!r}; 'gpus' counts within it, from 0",
        )
    return ",".join(allowed[gpu] for gpu in runtime.gpus)
