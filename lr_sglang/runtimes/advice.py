"""How a model's makers advise to sample: its ``generation_config.json``, then a table of
families.
"""

from __future__ import annotations

from typing import Any

from lr_sglang.runtimes.placement import models

Advice = dict[str, Any]
# The first name that is part of the model's name counts. ``max_tokens`` is a limit of an answer,
# the others are settings of sampling.
FAMILIES: tuple[tuple[str, Advice], ...] = (
    ("deepseek-r1", {"temperature": 0.6, "top_p": 0.95}),
    ("qwen3.", {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "max_tokens": 81920}),
    ("qwen3", {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
    ("gpt-oss", {"temperature": 1.0, "top_p": 1.0}),
    ("kimi-k2", {"temperature": 1.0}),
)
GENERATION_CONFIG = "generation_config.json"
SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p")  # what SGLang too takes from that file


def advised_sampling(model: str) -> Advice:
    """The advised settings of sampling; those that nobody advises are missing.

    Args:
        model: a name or a folder. The file of a hub name is read from the hub's cache only.
    """
    said = {name: models.said(model, GENERATION_CONFIG, name) for name in SAMPLING_FIELDS}
    found = {
        name: value
        for name, value in said.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if found.get("top_k") == 0:  # off, in transformers
        found["top_k"] = -1
    return {name: value for name, value in family(model).items() if name in SAMPLING_FIELDS} | found


def family(model: str) -> Advice:
    """The advice of our table."""
    return next((advice for name, advice in FAMILIES if name in model.lower()), {})
