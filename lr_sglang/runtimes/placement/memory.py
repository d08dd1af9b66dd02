"""How much GPU memory a model needs, by its configuration or its name, before anything is
downloaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lr_sglang.config import Runtime
from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.runtimes.placement import models, shapes

GIB = 2**30
# Bytes of a parameter, by the quantisation in the runtime's settings or in the published model's
# name.
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

_BILLIONS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])")
_SUFFIXES = re.compile(r"-(?:instruct|chat|base|it|fp8|dynamic|awq|gptq|int[48]|w8a8|hf)$")


@dataclass(frozen=True)
class Need:
    """The GPU memory that a runtime needs in all, on one GPU or several.

    Attributes:
        weights: GiB, those of a token layer's draft model too.
        token: MiB that one token takes in the KV memory.
        heads: attention heads, which tensor parallelism must divide; 0 is unknown.
        parallel: number of GPUs in the deployment; 0 lets the placement choose.
    """

    weights: float
    token: float
    heads: int = 0
    parallel: int = 0


def need(runtime: Runtime, where: str = "runtime") -> Need:
    """The need of a runtime that we launch.

    Raises:
        ConfigError: neither a configuration here nor the model's name says how large it is.
    """
    model, layer = _need(runtime.model, runtime, where), runtime.token_layer.draft_model
    draft = _need(layer, runtime.replace(quantization=""), where) if layer else Need(0.0, 0.0)
    copies, asked = runtime.data_parallel, runtime.tensor_parallel * runtime.data_parallel
    weights, token = copies * (model.weights + draft.weights), model.token + draft.token
    return Need(weights, token, model.heads, asked if asked > 1 else 0)


def _need(model: str, runtime: Runtime, where: str) -> Need:
    # Bytes of a parameter.
    names, wide = f"{runtime.quantization} {model}".lower(), WIDE.get(runtime.dtype, 2.0)
    width, config = next((size for name, size in QUANTISED if name in names), wide), _config(model)
    if config is not None:
        heads = int(config["num_attention_heads"])
        kv = int(config.get("num_key_value_heads") or heads)
        head = int(config.get("head_dim") or config["hidden_size"] // heads)
        token = (
            2 * int(config["num_hidden_layers"]) * kv * head * 2 / 2**20
        )  # keys and values, two bytes each
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


def _config(model: str) -> Mapping[str, Any] | None:
    """The configuration, from a directory here or from the shape of the same name."""
    shape = shapes.name_of(model).removeprefix(shapes.PREFIX) or _plain(model)
    if shape in shapes.shapes():
        return shapes.shapes()[shape]
    if models.is_body(model):
        return models.body_config(model)
    try:
        found = json.loads(Path(models.locate(model), "config.json").read_text("utf-8"))
    except (OSError, ValueError, LookaheadError):
        return None
    found = found.get("text_config", found)
    return (
        found
        if {"num_hidden_layers", "hidden_size", "num_attention_heads"} <= found.keys()
        else None
    )


def _plain(model: str) -> str:
    """``Qwen/Qwen2.5-7B-Instruct`` as the name of a shape: ``qwen2.5-7b``."""
    name = model.rpartition("/")[2].lower()
    while (shorter := _SUFFIXES.sub("", name)) != name:
        name = shorter
    return name


def _weights(config: Mapping[str, Any], heads: int, kv: int, head: int) -> float:
    """Parameters of a model by its configuration; the feed-forward part counts once for each
    expert.
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
    layer = hidden * head * 2 * (heads + kv) + 3 * hidden * inner * experts
    ends = (
        int(config.get("vocab_size", 0)) * hidden * (1 if config.get("tie_word_embeddings") else 2)
    )
    return int(config["num_hidden_layers"]) * layer + ends
