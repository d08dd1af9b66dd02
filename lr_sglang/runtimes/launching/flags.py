"""From a runtime's description to the command that starts it: data in, data out; nothing is started here."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from lr_sglang.config import Runtime
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes.launching import server_options, token_layer
from lr_sglang.runtimes.launching.ports import HOST
from lr_sglang.runtimes.placement import bodies, shapes
from lr_sglang.sglang_api import server

Device = Literal["cpu", "cuda"]
Flags = dict[str, Any]

# Deterministic inference turns the radix cache off with every other backend (SGLang's
# RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND). Of these triton runs on every generation of GPUs.
REPEATABLE_BACKENDS = ("triton", "fa3", "fa4")

# SGLang's name for a loader that it does not have itself: ours, which computes a body (see ``pocket.loader``).
IN_MEMORY = "private"
PRECOMPILE = "SGLANG_JIT_DEEPGEMM_PRECOMPILE"

# Flags of `extra` with which a server uses other GPUs than tensor_parallel x data_parallel says.
SPREADING = frozenset(("pp-size", "pipeline-parallel-size", "base-gpu-id", "gpu-id-step"))

# Flags that `extra` may not set, with what to use instead.
OWNED = {
    "host": "servers are for this machine only",
    "config": "write the flags into 'extra' one by one",
    "api-key": "start the server yourself and give its 'url' and 'api_key_env'",
    "admin-api-key": "start the server yourself and give its 'url'",
    "model-path": "use 'model'",
    "model": "use 'model'",
    "tokenizer-path": "use 'tokenizer'",
    "port": "use 'port'",
    "device": "use 'device'",
    "dtype": "use 'dtype'",
    "quantization": "use 'quantization'",
    "context-length": "use 'context_length'",
    "mem-fraction-static": "use 'memory_fraction'",
    "enable-deterministic-inference": "use 'repeatable'",
    "max-running-requests": "use 'max_running_requests'",
    **dict.fromkeys(
        (
            *("speculative-algorithm", "speculative-draft-model", "speculative-draft-model-path"),
            *("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"),
        ),
        "use 'token_layer'",
    ),
    **dict.fromkeys(("tp", "tp-size", "tensor-parallel-size"), "use 'tensor_parallel'"),
    **dict.fromkeys(("dp", "dp-size", "data-parallel-size"), "use 'data_parallel'"),
}


@dataclass(frozen=True)
class Command:
    """What to run: the arguments, and variables on top of our own environment."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Platform:
    """What a kind of machine adds: flags under those that the runtime gives, and variables."""

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
        port: where it shall listen.
        platform: see ``platforms.platform``.
        model: what to load, where ``runtime.model`` is not yet a path that SGLang knows (see ``models.locate``).
        environ: our own variables: ``runtime.gpus`` counts within CUDA_VISIBLE_DEVICES, a given CXX is kept.
        where: how to name the runtime in an error.
        target: whether it is the target, which answers requests with tools that the endpoint passes on.

    Raises:
        ConfigError: settings that exclude each other.
    """
    extra = extras(runtime, where)
    flags: Flags = {"model-path": model or runtime.model, "host": HOST, "port": port, "device": platform.device}
    # Our own first request warms the server, and readiness needs no second one of SGLang's.
    flags["skip-server-warmup"] = True
    if target:
        # SGLang finds both by the model's chat template, and does without what it does not find.
        flags |= {"tool-call-parser": "auto", "reasoning-parser": "auto"}
    flags |= platform.flags
    if platform.device == "cuda":
        flags |= _gpu_flags(runtime, extra, where)
    elif runtime.gpus:
        raise ConfigError(f"{where}: 'gpus' are given for a runtime on the CPU", hint="leave them out")
    given = {
        "tokenizer-path": runtime.tokenizer or None,
        "tp-size": runtime.tensor_parallel if runtime.tensor_parallel > 1 else None,
        "dp-size": runtime.data_parallel if runtime.data_parallel > 1 else None,
        "mem-fraction-static": runtime.memory_fraction,
        "dtype": runtime.dtype if runtime.dtype != "auto" else None,
        "quantization": runtime.quantization or None,
        "context-length": runtime.context_length,
        "max-running-requests": runtime.max_running_requests,
    }
    flags |= {name: value for name, value in given.items() if value is not None}
    if runtime.token_layer.on:
        token_layer.check(runtime, platform.device, where)
        flags.pop("enable-mixed-chunk", None)  # SGLang leaves it out with every token layer
        flags |= token_layer.flags(runtime.token_layer, where)
    flags |= extra
    flags |= {name: value for name, value in _load_formats(flags).items() if name not in flags}
    if platform.device == "cpu" and flags.get("speculative-adaptive"):
        # SGLang would capture decode graphs for each number of steps, and a CPU has none.
        flags.setdefault("disable-decode-cuda-graph", True)
    env = platform.env | token_layer.environment(runtime.token_layer)
    if runtime.gpus:
        env["CUDA_VISIBLE_DEVICES"] = _devices(runtime, environ.get("CUDA_VISIBLE_DEVICES"), where)
        if "CUDA_DEVICE_ORDER" not in environ:
            env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as nvidia-smi counts; CUDA would begin with the fastest
    if flags.get("speculative-algorithm") == "NGRAM" and "CXX" not in environ and server.BUILD.applies():
        # SGLang compiles its n-gram corpus when it starts; 0.5.16's source lacks this header, which GCC 12 insists on.
        # 0.5.23 takes no options in CXX, and needs none.
        env["CXX"] = "c++ -include cstddef"
    if platform.device == "cuda" and "fp8" in f"{flags['model-path']} {runtime.quantization}".lower():
        # On Hopper SGLang would compile DeepGEMM for all sizes of a batch at its first start, for minutes; without, for
        # each size at its first use, and `launch --prime` begins with some.
        env |= {} if PRECOMPILE in environ else {PRECOMPILE: "0"}
    # -P: a file in the directory that we are called from must not stand in for a module that SGLang imports.
    return Command((sys.executable, "-P", "-m", platform.module, *arguments(flags)), env)


def extras(runtime: Runtime, where: str = "runtime") -> Flags:
    """``runtime.extra`` under the names that SGLang's command line uses.

    Raises:
        ConfigError: a flag that has a field of its own.
    """
    named = server_options.named(runtime.extra)
    for name in named:
        if name in OWNED:
            raise ConfigError(f"{where}: 'extra' may not set --{name}", hint=OWNED[name])
    return named


def meeting(runtime: Runtime, where: str = "runtime") -> str:
    """The flag that tells a server at which port its processes meet; empty where it must choose several itself."""
    chosen = runtime.data_parallel > 1 or "nccl-port" in extras(runtime, where)
    return "" if chosen else "--nccl-port"


def arguments(flags: Flags) -> list[str]:
    """Flags as a command line: true is a bare flag, false or None leaves it out, a list gives several values."""
    line: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        line.append(f"--{name}")
        if isinstance(value, (list, tuple)):
            line.extend(map(str, value))
        elif isinstance(value, Mapping):
            line.append(json.dumps(value))
        elif value is not True:
            line.append(str(value))
    return line


def computes_bodies(runtime: Runtime, device: Device) -> bool:
    """Whether a server computes its bodies in memory and reads no file: on a GPU, or where that is asked for."""
    return bool(extras(runtime).get("load-format", {"cuda": IN_MEMORY, "cpu": "auto"}[device]) == IN_MEMORY)


def _load_formats(flags: Flags) -> Flags:
    """How models without weight files are loaded; SGLang would load the token layer's draft model as its target is."""
    target = _load_format(flags["model-path"])
    found: Flags = {} if target == "auto" else {"load-format": target}
    draft = flags.get("speculative-draft-model-path") or flags.get("speculative-draft-model")
    if isinstance(draft, str) and (found or _load_format(draft) != "auto"):
        found["speculative-draft-load-format"] = _load_format(draft)
    return found


def _load_format(model: str) -> str:
    """Shapes have no weights; those of a body may have to be computed."""
    return "dummy" if shapes.is_shape(model) else IN_MEMORY if bodies.without_weights(model) else "auto"


def _gpu_flags(runtime: Runtime, extra: Flags, where: str) -> Flags:
    """SGLang chooses by GPU how to attend, fa3 on Hopper; only deterministic inference needs one that we name."""
    if not runtime.repeatable:
        return {}
    backend = extra.get("attention-backend", REPEATABLE_BACKENDS[0])
    if backend not in REPEATABLE_BACKENDS:
        raise ConfigError(
            f"{where}: with 'repeatable', attention backend {backend!r} would turn the prefix cache off",
            hint=f"take one of {', '.join(REPEATABLE_BACKENDS)}",
        )
    return {"attention-backend": backend, "enable-deterministic-inference": True}


def _devices(runtime: Runtime, visible: str | None, where: str) -> str:
    needed = runtime.tensor_parallel * runtime.data_parallel
    if len(runtime.gpus) < needed:
        raise ConfigError(
            f"{where}: gpus = {list(runtime.gpus)}, but tensor_parallel x data_parallel = {needed}",
            hint="name as many GPUs as that",
        )
    if len(runtime.gpus) > needed and not SPREADING & set(extras(runtime, where)):
        raise ConfigError(
            f"{where}: gpus = {list(runtime.gpus)}, of which tensor_parallel x data_parallel = {needed} would be used",
            hint="name as many GPUs as that, or raise 'tensor_parallel'",
        )
    if visible is None:
        return ",".join(map(str, runtime.gpus))
    allowed = [name.strip() for name in visible.split(",") if name.strip()]
    try:
        return ",".join(allowed[gpu] for gpu in runtime.gpus)
    except IndexError:
        raise ConfigError(
            f"{where}: gpus = {list(runtime.gpus)}, but only {len(allowed)} are visible",
            hint=f"CUDA_VISIBLE_DEVICES is {visible!r}; 'gpus' counts within it, from 0",
        ) from None
