"""Trains a draft on the versions of a run: train_draft.py sft|dpo MODEL RUN/FILE.jsonl OUTPUT."""

import sys

from datasets import load_dataset
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

way, model, file, output = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model)
own = tokenizer.chat_template


def as_text(row):
    """The draft's prompt up to the step, and the step; a turn ends only where the answer did."""
    made = {}
    opened = tokenizer.apply_chat_template(
        row["prompt"], add_generation_prompt=True, tokenize=False
    )
    for name in ("completion",) if way == "sft" else ("chosen", "rejected"):
        text = row[name][0]["content"]
        end = tokenizer.eos_token if row[f"{name}_ends"] else ""
        made[name] = [{"role": "assistant", "content": text[row["prefix"] :] + end}]
    return made | {"prompt": [{"role": "user", "content": opened + text[: row["prefix"]]}]}


rows = load_dataset("json", data_files=file, split="train").map(as_text)
# The texts are whole: TRL is to add neither roles nor an end of the turn.
tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
common = {
    "output_dir": output,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 8,
    "bf16": True,
    "max_length": 32768,
    "logging_steps": 10,
    "save_strategy": "no",
}
if way == "sft":
    trainer_class, config = SFTTrainer, SFTConfig(learning_rate=1e-5, **common)
else:
    trainer_class, config = DPOTrainer, DPOConfig(learning_rate=5e-7, beta=0.1, **common)
trainer = trainer_class(model, args=config, train_dataset=rows, processing_class=tokenizer)
trainer.train()
trainer.save_model(output)
tokenizer.chat_template = own
tokenizer.save_pretrained(output)
