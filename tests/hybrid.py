"""Small models with random weights: hybrids and mixtures of experts with the pocket models'
tokenizer, a dense one with that of another folder.

``python -m tests.hybrid make FOLDER FAMILY [TOKENIZER]`` saves one, ``greedy FOLDER PROMPTS`` prints the
tokens of transformers after each prompt: for tests whose own process has no torch.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lr_sglang import pocket
from lr_sglang.engine.tokenizer import load_tokenizer
from lr_sglang.runtimes.placement.models import TOKENIZER_FILES
from lr_sglang.steps.step import DELIMITER
from tests import ROOT

EVERY = 4  # of so many layers, one has full attention
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "full_attention_interval": EVERY,
}
EXPERTS = {
    "num_hidden_layers": EVERY,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
# What makes a family, by its ``model_type``.
FAMILIES = {
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA | EXPERTS,
    "qwen3_next": DELTA | EXPERTS,
    "qwen3_moe": EXPERTS | {"norm_topk_prob": True, "initializer_range": 0.3},
    "qwen3": {"num_hidden_layers": 2, "hidden_size": 64},
}


def make(folder: Path, family: str, tokenizer: str = "") -> Path:
    """Saves the model. A step ends every 15 tokens or so, and an answer not by itself."""
    torch.manual_seed(0)
    source = Path(tokenizer or pocket.weights("target"))
    read = load_tokenizer(str(source))
    (step_end,) = read.encode(DELIMITER, True)
    end = min(read.ends)
    known = {"vocab_size": read.size, "eos_token_id": end, "pad_token_id": end}
    if not tokenizer:
        known = json.loads((source / "config.json").read_text())
    common = {
        "vocab_size": known["vocab_size"],
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2 * EVERY,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "rope_parameters": ROPE,
        "tie_word_embeddings": False,
        "eos_token_id": known["eos_token_id"],
        "pad_token_id": known["pad_token_id"],
        "initializer_range": 0.08,
        "dtype": "float32",
    }
    config = AutoConfig.for_model(family, **(common | FAMILIES[family]))
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("A_log"):  # a slow decay: a wrong state long ago changes the output
                weight.copy_(torch.log(torch.linspace(0.005, 0.2, weight.numel())))
            elif name.endswith("conv1d.weight"):
                weight.normal_(0, 0.5)
            elif name.endswith("lm_head.weight"):
                weight.normal_(0, 0.3)
                weight[known["eos_token_id"]] = 0
                weight[step_end] *= 3.2 if tokenizer else 2.1  # there are more tokens beside it
    model.save_pretrained(folder)
    # transformers 5.19 drops the interval, which SGLang reads
    written = json.loads((folder / "config.json").read_text())
    text = json.dumps(written | FAMILIES[family], indent=2)
    (folder / "config.json").write_text(text)
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copy(source / name, folder)
    return folder


def greedy(folder: Path, prompts: list[tuple[list[int], int]]) -> list[list[int]]:
    """The tokens that transformers writes after each prompt, which says how many."""
    model, written = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), []
    for ids, count in prompts:
        whole = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        written.append(whole[0, len(ids) :].tolist())
    return written


if __name__ == "__main__":
    torch.set_num_threads(1)  # beside a server, several wait for each other
    what, where, *more = sys.argv[1:]
    if what == "make":
        make(Path(where), *more)
    else:
        sys.stdout.write(json.dumps(greedy(Path(where), json.loads(more[0]))))


def outside(what: str, *arguments: object) -> str:
    """What a process with torch says; this one may have none."""
    command = [sys.executable, "-m", "tests.hybrid", what, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
