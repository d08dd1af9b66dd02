"""Hybrids: models most of whose layers are linear attention (Gated DeltaNet), as Qwen3-Next and
Qwen3.5 and later.

Such a layer keeps one state for a sequence, of the same size at every length. SGLang finds a
prefix again only where it has kept a copy of all its states; docs/hybrids.md says
where that is, and why each flag here is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

# Copies of the states that SGLang reserves for a running request: 3 with no_buffer, its strategy
# where nothing overlaps (a CPU), and 2 more with extra_buffer, its strategy on GPUs (its
# ``_calculate_mamba_ratio``).
COPIES = {"cpu": 3, "cuda": 5}
# Both strategies can keep a state at every 64 tokens, the chunk of the recurrence, and no finer.
GRID = 64
STRATEGY: dict[str, dict[str, Any]] = {
    "cpu": {
        "mamba-radix-cache-strategy": "no_buffer",
        "chunked-prefill-size": GRID,
        # requests tell when they entered, so that states that were lost show in the reuse
        "enable-metrics": True,
    },
    "cuda": {"mamba-track-interval": GRID},
}
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def linear_layers(config: Mapping[str, Any]) -> int:
    """The layers of linear attention; 0 for a model that is no hybrid."""
    if not config.get("linear_num_value_heads"):
        return 0
    if types := config.get("layer_types"):
        return list(types).count("linear_attention")
    layers, every = int(config["num_hidden_layers"]), int(config.get("full_attention_interval", 4))
    return layers - layers // every


def _sizes(config: Mapping[str, Any]) -> tuple[int, int]:
    """Numbers of all keys and of all values in a layer of linear attention."""
    keys = int(config["linear_num_key_heads"]) * int(config["linear_key_head_dim"])
    values = int(config["linear_num_value_heads"]) * int(config["linear_value_head_dim"])
    return keys, values


def parameters(config: Mapping[str, Any]) -> int:
    """Of one layer of linear attention, without its feed-forward part."""
    keys, values = _sizes(config)
    return int(config["hidden_size"]) * (2 * keys + 3 * values)


def state_bytes(config: Mapping[str, Any]) -> int:
    """One sequence's states in all layers; 0 for a model that is no hybrid."""
    if not (layers := linear_layers(config)):
        return 0
    keys, values = _sizes(config)
    matrix = values * int(config["linear_key_head_dim"])
    window = (2 * keys + values) * (int(config.get("linear_conv_kernel_dim", 4)) - 1)
    return layers * (matrix * BYTES[config.get("mamba_ssm_dtype", "float32")] + 2 * window)


def flags(
    config: Mapping[str, Any], device: Literal["cpu", "cuda"], requests: int | None
) -> dict[str, Any]:
    """SGLang's flags for a hybrid; empty for other models.

    Args:
        requests: that the server is to run at a time; None leaves the number of states to SGLang,
            which gives them 9 parts of the memory beside the weights, and KV memory 10.
    """
    if not linear_layers(config):
        return {}
    size = {} if requests is None else {"max-mamba-cache-size": COPIES[device] * requests}
    return STRATEGY[device] | size
