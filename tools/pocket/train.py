"""Train the pocket models from nothing: ``make pocket``, or ``python -m tools.pocket.train --role
all --out DIR``.

Stopped at any moment, the same command goes on from the last checkpoint. Finished models lie in
``DIR/ROLE`` in Hugging Face format. Judge training ends with pairs sampled from the finished target
and draft.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from random import Random

import click
import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast

from lr_sglang.pocket import (
    HYBRID,
    KNOWS_OTHER_WORDS,
    MODELS,
    OTHER_WORDS,
    THINKING,
    weights,
)
from tools.pocket.data import Batch, Document, Pair, batches, judgements, other_words, solutions
from tools.pocket.export import export
from tools.pocket.hybrid import HybridModel
from tools.pocket.model import PocketModel, Shape
from tools.pocket.optimizer import Optimizer
from tools.pocket.recipe import RECIPES
from tools.pocket.sampling import real_pairs
from tools.pocket.thinking import THINKING_TEMPLATE, thoughts
from tools.pocket.tokenizer import train_tokenizer

log = logging.getLogger(__name__)
CHECKPOINT_SECONDS = 120
OUT = Path("build/pocket")
REAL_PROBLEMS = (
    500  # problems of the training side on which target and draft are sampled for the judge
)


class Trainer:
    """Training of one role: model, optimizer, where it stands, and its checkpoint file."""

    def __init__(self, role: str, out: Path, seed: int) -> None:
        self.role, self.out, self.seed = role, out, seed
        self.recipe = RECIPES[role]
        base = self.recipe.base
        self.tokenizer = (
            PreTrainedTokenizerFast.from_pretrained(weights(base))
            if base
            else shared_tokenizer(out, seed)
        )
        self.pool = self.tokens = self.steps_in_stage = self.stage = 0
        self.seconds, self.curve = 0.0, list[dict[str, float]]()
        self.real: list[Pair] = []
        torch.manual_seed(seed * 1000 + MODELS.index(role))
        if role in THINKING:
            self.tokenizer.chat_template = THINKING_TEMPLATE
        self.kind = HybridModel if role == HYBRID else PocketModel
        if base:
            self.model, layers = PocketModel.of_hf(weights(base)), self.recipe.stages[0].layers
            if role == HYBRID:
                self.model = HybridModel.of(self.model, layers)
            elif layers < self.model.shape.layers:
                self.model = self.model.shrink(layers)
        else:
            self.model = PocketModel(
                Shape(self.recipe.stages[0].layers, vocabulary=len(self.tokenizer))
            )
        self.optimizer = Optimizer(self.model)
        self.checkpoint = out / f"{role}.pt"
        if self.checkpoint.exists():
            self._load()

    def _load(self) -> None:
        state = torch.load(self.checkpoint, weights_only=True)
        for name in ("pool", "tokens", "steps_in_stage", "stage", "seconds", "curve"):
            setattr(self, name, state[name])
        self.model = self.kind(Shape(**state["shape"]))
        self.model.load_state_dict(state["model"])
        self.optimizer = Optimizer(self.model)
        self.optimizer.load_state_dict(state["optimizer"])

    def save(self) -> None:
        """Write the checkpoint; a crash while writing leaves the previous one."""
        state = {
            name: getattr(self, name)
            for name in ("pool", "tokens", "steps_in_stage", "stage", "seconds", "curve")
        }
        state |= {
            "shape": vars(self.model.shape),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        part = self.checkpoint.with_suffix(".part")
        torch.save(state, part)
        part.replace(self.checkpoint)

    def _enter_stage(self, number: int) -> None:
        stage = self.recipe.stages[number]
        if stage.layers != self.model.shape.layers:
            self.model = self.model.grow(stage.layers)
            self.optimizer = Optimizer(self.model)
            self.steps_in_stage = 0
        if stage.real:
            self.real = load_real_pairs(self.out, self.seed)
        self.stage = number

    def _documents(self) -> list[Document]:
        rng = Random(f"{self.seed} {self.role} {self.pool}")
        if self.role == "judge":
            return judgements(self.tokenizer, rng, self.real)
        if self.role in (OTHER_WORDS, KNOWS_OTHER_WORDS):
            return other_words(self.tokenizer, rng, written=self.role == OTHER_WORDS)
        if self.role in THINKING:
            return thoughts(self.tokenizer, rng)
        return solutions(self.tokenizer, rng, easy=self.tokens < self.recipe.easy_tokens)

    def _step(self, batch: Batch) -> tuple[float, float]:
        hidden = self.model(batch.ids, batch.positions, batch.mask)
        learned = batch.weights > 0
        weights, targets = batch.weights[learned], batch.targets[learned]
        logits = self.model.logits(hidden[learned])
        loss = (F.cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step(self.recipe.rate(self.tokens, self.steps_in_stage))
        hard = weights >= 1
        right = (logits.argmax(-1) == targets)[hard].float().mean()
        return loss.item(), right.item()

    def run(self) -> None:
        """Train to the end of the recipe, then export."""
        started = saved = time.monotonic()
        before = self.seconds
        while (number := self.recipe.stage_at(self.tokens)) < len(self.recipe.stages):
            if number != self.stage or (self.recipe.stages[number].real and not self.real):
                self.save()
                self._enter_stage(number)
            figures, rng = [], Random(f"{self.seed} rows {self.pool}")
            for batch in batches(self._documents(), self.recipe.row, self.recipe.rows, rng):
                figures.append(self._step(batch))
                self.tokens += batch.tokens
                self.steps_in_stage += 1
            self.pool += 1
            self.seconds = before + time.monotonic() - started
            loss, right = (sum(column) / len(figures) for column in zip(*figures, strict=True))
            self.curve.append(
                {"tokens": self.tokens, "loss": round(loss, 4), "right": round(right, 4)}
            )
            log.info(
                "%s %d layers: %.2f M of %.1f M tokens, loss %.4f, right %.4f, %.0f tokens/s",
                self.role, self.model.shape.layers, self.tokens / 1e6, self.recipe.tokens / 1e6, loss, right,
                self.tokens / self.seconds,
            )  # fmt: skip
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                self.save()
                saved = time.monotonic()
        self.save()
        self.export()

    def export(self) -> None:
        """Write the model as it stands, and beside it how it was trained."""
        folder = self.out / self.role
        export(self.model, self.tokenizer, folder)
        record = {
            "role": self.role, "seed": self.seed, "tokens": self.tokens, "seconds": round(self.seconds),
            "stages": [vars(stage) for stage in self.recipe.stages], **self.model.describe(),
            "curve": self.curve[:: max(1, len(self.curve) // 40)],
        }  # fmt: skip
        (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n")


def shared_tokenizer(out: Path, seed: int) -> PreTrainedTokenizerFast:
    """The tokenizer in ``out``, trained first if it is not there yet."""
    folder = out / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        train_tokenizer(seed).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def load_real_pairs(out: Path, seed: int) -> list[Pair]:
    """Labelled pairs of steps sampled from the finished target and draft in ``out``; kept in a
    file.
    """
    file = out / "pairs.json"
    if not file.exists():
        missing = [
            role for role in ("target", "draft") if not (out / role / "model.safetensors").exists()
        ]
        if missing:
            raise click.ClickException(
                f"the judge's last stage needs the trained {' and '.join(missing)} in {out}"
            )
        pairs = real_pairs(out / "target", out / "draft", REAL_PROBLEMS, seed)
        file.write_text(json.dumps(pairs))
    return [(first, second, same) for first, second, same in json.loads(file.read_text())]


@click.command()
@click.option(
    "--role", type=click.Choice((*MODELS, "all")), required=True, help="Which model to train."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=OUT, help="Folder for models and checkpoints."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True, help="Threads of PyTorch.")
@click.option(
    "--export-only", is_flag=True, help="Export the last checkpoint as it is; do not train."
)
def main(role: str, out: Path, seed: int, threads: int, export_only: bool) -> None:
    """Train pocket models; resumes from checkpoints in OUT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(threads)
    out.mkdir(parents=True, exist_ok=True)
    for name in MODELS if role == "all" else (role,):
        trainer = Trainer(name, out, seed)
        if export_only:
            trainer.export()
        else:
            trainer.run()


if __name__ == "__main__":
    main()
