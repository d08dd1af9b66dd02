"""Writing a trained pocket model in Hugging Face format, bfloat16 safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tools.pocket.hybrid import EVERY, HybridModel
from tools.pocket.model import PocketModel
from tools.pocket.tokenizer import CONTEXT


def export(model: PocketModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights, configuration and tokenizer to ``folder``."""
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    hybrid = isinstance(model, HybridModel)
    config = (Qwen3_5TextConfig if hybrid else Qwen3Config)(
        **model.hf_config(),
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
        dtype="bfloat16",
    )
    twin = (Qwen3_5ForCausalLM if hybrid else Qwen3ForCausalLM)(config)
    report = twin.load_state_dict(model.hf_state(), strict=False)
    if report.unexpected_keys or set(report.missing_keys) - {"lm_head.weight"}:
        raise RuntimeError(f"weights do not match {type(twin).__name__}: {report}")
    twin.tie_weights()
    twin = twin.to(torch.bfloat16)
    # A pad token in the output is an error of the model: stop there too.
    twin.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad)
    twin.save_pretrained(folder)
    if hybrid:  # transformers drops the interval; SGLang reads both here, and else takes 0.25
        file = folder / "config.json"
        more = {"full_attention_interval": EVERY, "partial_rotary_factor": 1.0}
        written = json.loads(file.read_text()) | more
        file.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # it is written for its owner alone, and a wheel would keep that
    tokenizer.save_pretrained(folder)
