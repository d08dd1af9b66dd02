"""Makes the command that starts a runtime from its description, with the flags and variables that
SGLang needs on this kind of machine; nothing is started here.

The token layer is SGLang's speculative decoding: one table says how each algorithm takes our
settings. What SGLang itself refuses when it reads its command line is left to it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NoReturn

from lr_sglang.config import FED, Runtime, TokenLayer
from lr_sglang.cpu import settings
from lr_sglang.errors import ConfigError, SetupError, did_you_mean
from lr_sglang.pocket.body import SOURCE
from lr_sglang.runtimes.launching import compilers
from lr_sglang.runtimes.launching.server import HOST
from lr_sglang.runtimes.placement import gpus, hybrid, memory, models
from lr_sglang.sglang_api import release
from lr_sglang.sglang_api.plugin_protocol import FED_SWITCH

Flags = dict[str, Any]
DRAFTED_TOKENS = 8  # paper section 4
PLUGIN = "lr_sglang_fed"  # the entry point of our plugin in SGLang's servers
FED_TOKENS = 12  # of 12 and 20 the faster one on a CPU, and SGLang's own choice for n-grams
# Nodes of the n-gram trie on a CPU, of 184 bytes: SGLang's ten million take 1.8 GB of a server.
NGRAM_NODES = 1_000_000
TREE_STEPS = 5  # SGLang's own choice for a tree


@dataclass(frozen=True)
class Algorithm:
    """How one of SGLang's algorithms takes our settings.

    Attributes:
        name: as SGLang calls it.
        flags: of ``sglang.launch_server``, beside the algorithm's and the draft model's.
        draft: whether it drafts with a model of its own: ``none``, ``needed``, or ``bundled`` (one
            may be in the target's checkpoint).
        takes: the settings that mean something to it, beside ``tokens``.
        on_cpu: whether it runs without a GPU.
    """

    name: str
    flags: Callable[[TokenLayer], Flags]
    draft: Literal["none", "needed", "bundled"] = "needed"
    takes: frozenset[str] = frozenset()
    on_cpu: bool = False


def _ngram(layer: TokenLayer) -> Flags:
    tokens = layer.tokens or DRAFTED_TOKENS
    # A trie of this depth holds all drafted tokens behind a match of length ngram_max.
    depth = None if layer.ngram_max is None else layer.ngram_max + tokens
    return {
        "speculative-num-draft-tokens": tokens + 1,
        "speculative-ngram-max-bfs-breadth": layer.topk,
        "speculative-ngram-max-trie-depth": depth,
    }


def _fed(layer: TokenLayer) -> Flags:
    """Those of n-grams, which are guessed where no line is known; only chains are verified. Each
    pass is an event of the target's stream, which must not have all tokens so far.
    """
    chains = _ngram(layer.replace(tokens=layer.tokens or FED_TOKENS, topk=1))
    return {**chains, "incremental-streaming-output": True}


def _model(layer: TokenLayer) -> Flags:
    topk = layer.topk or 1
    steps = layer.steps or (TREE_STEPS if topk > 1 else layer.tokens or DRAFTED_TOKENS)
    tokens = layer.tokens or (DRAFTED_TOKENS if topk > 1 else steps)
    return {
        "speculative-num-steps": steps,
        "speculative-eagle-topk": topk,
        "speculative-num-draft-tokens": tokens + 1,
    }


_TREE = frozenset({"steps", "topk", "accept_length"})
ALGORITHMS: Mapping[str, Algorithm] = {
    FED: Algorithm("NGRAM", _fed, "none", frozenset({"ngram_max"}), on_cpu=True),
    "ngram": Algorithm(
        "NGRAM", _ngram, "none", frozenset({"topk", "ngram_max", "accept_length"}), on_cpu=True
    ),
    "standalone": Algorithm("STANDALONE", _model, takes=_TREE, on_cpu=True),
    "eagle": Algorithm("EAGLE", _model, takes=_TREE, on_cpu=True),
    "eagle3": Algorithm("EAGLE3", _model, takes=_TREE, on_cpu=True),
    "nextn": Algorithm("NEXTN", _model, "bundled", _TREE),
    # no number of tokens: the one that the draft was trained for
    "dflash": Algorithm(
        "DFLASH", lambda it: {"speculative-num-draft-tokens": it.tokens and it.tokens + 1}
    ),
    "dspark": Algorithm(
        "DSPARK", lambda it: {"speculative-dspark-block-size": it.tokens}, "bundled"
    ),
}


def roles_of(layer: TokenLayer, where: str) -> tuple[str, ...]:
    """The roles that a token layer without a role is for: the target, and the draft if it needs no
    draft model and no lines.

    Raises:
        ConfigError: there is no such algorithm.
    """
    with_model = layer.on and algorithm(layer, where).draft != "none"
    return ("target",) if with_model or layer.fed else ("target", "draft")


def algorithm(layer: TokenLayer, where: str) -> Algorithm:
    """The algorithm that a token layer names.

    Raises:
        ConfigError: there is none.
    """
    if layer.algorithm not in ALGORITHMS:
        hint = did_you_mean(layer.algorithm, ALGORITHMS, f"one of none, {', '.join(ALGORITHMS)}")
        raise ConfigError(f"{where}: no token layer is called {layer.algorithm!r}", hint=hint)
    return ALGORITHMS[layer.algorithm]


def check_layer(runtime: Runtime, device: str, where: str) -> None:
    """Checks a runtime's token layer before its server starts.

    Raises:
        ConfigError: settings that exclude each other, or that the algorithm or the device does not
            support.
    """
    layer = runtime.token_layer
    if not layer.on:
        return
    known = algorithm(layer, where)

    def refuse(why: str, hint: str = "") -> NoReturn:
        raise ConfigError(f"{where}: token layer {layer.algorithm}: {why}", hint=hint)

    if device == "cpu" and not known.on_cpu:
        refuse(
            "SGLang runs it on GPUs only",
            f"on a CPU: {', '.join(n for n, it in ALGORITHMS.items() if it.on_cpu)}",
        )
    if known.draft == "needed" and not layer.draft_model:
        refuse("it drafts with a model", "give 'draft_model' of the token layer")
    if known.draft == "none" and layer.draft_model:
        refuse("it drafts without a model", "leave 'draft_model' out")
    for name in {"steps", "topk", "ngram_max", "accept_length"} - known.takes:
        if getattr(layer, name) is not None:
            refuse(f"it has no {name!r}", f"it takes {', '.join(['tokens', *sorted(known.takes)])}")
    if layer.accept_length and not models.is_shape(runtime.model):
        hint = "it is for random weights (dummy:NAME), of whose tokens none would be accepted"
        refuse(f"with 'accept_length' {runtime.model} would write what was drafted", hint)


def check_installed(layer: TokenLayer) -> None:
    """Raises ``SetupError`` if SGLang would not find our plugin for a token layer."""
    if layer.fed and not entry_points(group="sglang.srt.plugins", name=PLUGIN):
        raise SetupError(
            f"the installed lr-sglang has no entry point {PLUGIN}: SGLang would not find it",
            hint="install it again: make setup, or pip install -e . in its checkout",
        )


def layer_environment(layer: TokenLayer) -> dict[str, str]:
    """Variables of a server with this token layer.

    The simulated verification of a chain keeps the drafted tokens. For a tree SGLang repeats one
    token instead, and it takes all n-grams for trees (``NgramVerifyInput.tree_topk`` is -1).
    """
    if layer.fed:
        return {FED_SWITCH: "1"}
    if not layer.accept_length:
        return {}
    found = {"SGLANG_SIMULATE_ACC_LEN": str(layer.accept_length)}
    if layer.algorithm != "ngram" and (layer.topk or 1) == 1:
        found["SGLANG_SIMULATE_ACC_TOKEN_MODE"] = "real-draft-token"
    return found


def layer_flags(layer: TokenLayer, where: str = "runtime") -> Flags:
    """The flags of a token layer, empty where there is none; ``draft_model`` is passed on as it is.

    Raises:
        ConfigError: there is no such algorithm.
    """
    if not layer.on:
        return {}
    known = algorithm(layer, where)
    wanted: Flags = {
        "speculative-algorithm": known.name,
        "speculative-draft-model-path": layer.draft_model or None,
        **known.flags(layer),
    }
    return {name: value for name, value in wanted.items() if value is not None}


Device = Literal["cpu", "cuda"]

# Fields of a runtime that become a flag if they differ from their default.
RUNTIME_FLAGS = {
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
# Deterministic inference keeps the radix cache with triton, fa3 and fa4 only (SGLang's
# RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND). Of these triton runs on every generation of
# GPUs.
REPEATABLE_BACKEND = "triton"
# SGLang's name for a loader from outside: ours, which computes a body (see ``pocket.loader``).
IN_MEMORY = "private"
PRECOMPILE = "SGLANG_JIT_DEEPGEMM_PRECOMPILE"
# Flags of `extra` with which a server uses other GPUs than tensor_parallel x data_parallel says.
SPREADING = frozenset(("pp-size", "pipeline-parallel-size", "base-gpu-id", "gpu-id-step"))


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
        platform: see ``server_platform``.
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
    extra = extras(runtime)
    layer = runtime.token_layer
    on_gpu = platform.device == "cuda"
    if runtime.gpus and not on_gpu:
        raise ConfigError(
            f"{where}: 'gpus' are given for a runtime on the CPU", hint="leave them out"
        )
    check_layer(runtime, platform.device, where)
    flags: Flags = {
        "model-path": model or runtime.model,
        "host": HOST,
        "port": port,
        "device": platform.device,
    }
    flags["skip-server-warmup"] = True  # our own first request warms the server
    flags |= (PARSERS if target else {}) | platform.flags
    if models.is_pocket(runtime.model):  # of white space within a grammar they write no end
        flags["constrained-json-disable-any-whitespace"] = True
    if on_gpu and runtime.repeatable:  # deterministic inference needs a named attention backend
        flags |= {"attention-backend": REPEATABLE_BACKEND, "enable-deterministic-inference": True}
    default = Runtime(model="any")
    given = {
        flag: (getattr(runtime, name), getattr(default, name))
        for name, flag in RUNTIME_FLAGS.items()
    }
    flags |= {
        flag: value for flag, (value, usual) in given.items() if value != usual and value != ""
    }
    config = memory.config_of(str(flags["model-path"])) or {}
    slots = flags.get("max-running-requests")
    flags |= hybrid.flags(config, platform.device, slots)
    if layer.on:  # SGLang has no mixed chunks with a token layer
        flags |= {"enable-mixed-chunk": None} | layer_flags(layer, where)
    flags |= extra
    flags = _load_formats(flags) | flags
    if not on_gpu and flags.get("speculative-algorithm") == "NGRAM":
        flags.setdefault("speculative-ngram-capacity", NGRAM_NODES)
    if not on_gpu and flags.get("speculative-adaptive"):
        # SGLang would capture decode graphs for each number of steps, and a CPU has none.
        flags.setdefault("disable-decode-cuda-graph", True)

    env = platform.env | layer_environment(layer)
    unless_given: dict[str, str] = {}
    if runtime.gpus:
        env["CUDA_VISIBLE_DEVICES"] = _devices(runtime, environ.get("CUDA_VISIBLE_DEVICES"), where)
        # the order of nvidia-smi; CUDA's own begins with the fastest
        unless_given["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if on_gpu and "fp8" in f"{flags['model-path']} {runtime.quantization}".lower():
        # On Hopper SGLang would compile DeepGEMM for all batch sizes at its first start, which
        # takes minutes. Without, it compiles each size at its first use.
        unless_given[PRECOMPILE] = "0"
    ngrams = layer.on and algorithm(layer, where).name == "NGRAM"
    if ngrams and release.version().startswith("0.5.16"):
        # it leaves out a header that newer compilers (gcc 12) no longer bring in by themselves
        unless_given["CXX"] = "c++ -include cstddef"
    env |= {name: value for name, value in unless_given.items() if name not in environ}
    # -P: no file of the current directory may shadow a module that SGLang imports.
    return Command((sys.executable, "-P", "-m", platform.module, *arguments(flags)), env)


def extras(runtime: Runtime) -> Flags:
    """``runtime.extra`` under the names that SGLang's command line uses."""
    return {key.lstrip("-").replace("_", "-"): value for key, value in runtime.extra.items()}


def meeting(runtime: Runtime) -> str:
    """The flag for the port at which a server's processes meet; empty if the server must choose
    several itself.
    """
    return "" if runtime.data_parallel > 1 or "nccl-port" in extras(runtime) else "--nccl-port"


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
    if models.is_shape(model):
        return "dummy"
    return IN_MEMORY if Path(model, SOURCE).is_file() else "auto"


def _devices(runtime: Runtime, visible: str | None, where: str) -> str:
    """The runtime's GPUs as CUDA_VISIBLE_DEVICES names them, counted within those that are visible
    here.
    """
    needed = runtime.tensor_parallel * runtime.data_parallel
    given = len(runtime.gpus)
    if given < needed or (given > needed and not SPREADING & set(extras(runtime))):
        message = (
            f"{where}: gpus = {list(runtime.gpus)}, but tensor_parallel x data_parallel = {needed}"
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


HOPPER = re.compile(r"\bG?H\d+\b")  # H100, H200, GH200 and so on


def device(runtime: Runtime, role: str | None = None) -> Device:
    """Where a runtime will run: as it asks, else on a GPU if there is one. Pocket models gain
    nothing: on a CPU.

    Raises:
        ConfigError: it asks for a GPU and there is none.
    """
    if not takes_gpu(runtime):
        return "cpu"
    if _gpus() > 0:
        return "cuda"
    if runtime.device == "cuda" or runtime.gpus:
        why = "a GPU is asked for and PyTorch sees none"
        raise ConfigError(why, role=role, hint=_without_gpu(runtime))
    return "cpu"


def takes_gpu(runtime: Runtime) -> bool:
    """Whether a runtime goes on a GPU where there is one."""
    small = models.is_pocket(runtime.model) and not models.is_body(runtime.model)
    chosen = runtime.device == "auto" and small and not runtime.gpus
    return runtime.device != "cpu" and not chosen


def too_large_here(runtime: Runtime) -> str:
    """That the weights of a runtime on the CPU exceed this machine's memory; empty if they do not,
    or their size is not known.
    """
    kind = settings.cpu_flags()["dtype"] if runtime.dtype == "auto" else runtime.dtype
    try:
        weights = memory.runtime_need(runtime.replace(dtype=kind)).weights
    except ConfigError:
        return ""
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / memory.GIB
    if weights <= room:
        return ""
    return f"its weights take {weights:.0f} GiB in {kind}, and this machine has {room:.0f}"


def _without_gpu(runtime: Runtime) -> str:
    """What to do where there is no GPU."""
    if why := too_large_here(runtime):
        smaller = "take a smaller model, such as those of the deployment pocket"
        return f"{why}: {smaller}, or a machine with a GPU"
    return "set device = 'cpu', or see lr-sglang doctor"


def server_platform(kind: Device, model: str) -> Platform:
    """Flags and variables for a server of this model (a path or a hub name) on this kind of device.

    Raises:
        SetupError: our CPU package is not installed for SGLang; or the folder of the CUDA
            toolkit cannot be written.
    """
    if kind == "cuda":
        # With metrics, a server reports when a request entered, so that prefix reuse is exact. On a
        # CPU they would cost a small model a twentieth of its speed.
        return Platform("cuda", {"enable-metrics": True, **_attention()}, compilers.environment())
    if not entry_points(group="sglang.srt.platforms", name="lr_sglang_cpu"):
        raise SetupError(
            "lr-sglang is not installed, only on the path: SGLang then does not find its "
            "operators for the CPU",
            hint="install it: pip install -e . in its checkout",
        )
    family = models.said(model, "config.json", "model_type")
    return Platform(
        "cpu",
        flags=settings.cpu_flags(),
        # TMPDIR: see Server. On a GPU it stays: libraries keep there what they compiled.
        env={**settings.cpu_environment(family=str(family)), "TMPDIR": ""},
        module="lr_sglang.runtimes.launching.launcher",
    )


def _attention() -> Flags:
    """Triton attention on Hopper if fa3's library is missing: SGLang would choose fa3
    all the same.
    """
    kernels = find_spec("sgl_kernel")
    folders = kernels.submodule_search_locations if kernels is not None else None
    if any(list(Path(folder).glob("flash_ops*")) for folder in folders or ()):
        return {}
    return (
        {"attention-backend": "triton"}
        if any(HOPPER.search(gpu.name) for gpu in gpus.visible())
        else {}
    )


def _gpus() -> int:
    import torch  # a second to import, and only here

    return int(torch.cuda.device_count())
