"""Train a copy of a draft on what its target wrote in its place: the steps that ``lr-sglang report
--export pairs`` makes of a run on training problems. docs/training-drafts.md has the commands and
what came of it.

The loss is on the target's version of each step, after the prefix that the answer had there, which
the draft wrote where it was accepted. Steps of one question in ten are kept for the curve. Stopped
at any moment, the same command goes on from the last epoch.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import click
import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast

from lr_sglang.pocket import weights
from tools.pocket.data import Batch, Document, batches
from tools.pocket.export import export
from tools.pocket.model import PocketModel
from tools.pocket.optimizer import Optimizer
from tools.pocket.tokenizer import END, chat, encode

log = logging.getLogger(__name__)
ROW, ROWS = 256, 8  # predictions in a row, and rows in a batch
KEPT = 10  # one question in ten is not trained on
RATE = 0.05  # of the learning rates with which the models were trained
WARM_UP = 40  # batches


def documents(tokenizer: PreTrainedTokenizerFast, rows: Sequence[dict[str, Any]]) -> list[Document]:
    """Steps of the target after the prefixes of answers; the loss is on the step alone."""
    made = []
    for row in rows:
        text, prefix = row["completion"][0]["content"], row["prefix"]
        before = chat(row["prompt"][0]["content"]) + text[:prefix]
        step = text[prefix:] + (END if row["completion_ends"] else "")
        known, written = encode(tokenizer, [before, step])
        made.append(Document(known + written, [0.0] * len(known) + [1.0] * len(written)))
    return made


def apart(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows to train on, and those of the questions that are kept for the curve."""
    names = sorted({row["question_id"] for row in rows})
    kept = set(names[::KEPT])
    return (
        [row for row in rows if row["question_id"] not in kept],
        [row for row in rows if row["question_id"] in kept],
    )


def loss_of(model: PocketModel, batch: Batch) -> tuple[torch.Tensor, int]:
    """The mean loss of a batch's steps, and their number of tokens."""
    hidden = model(batch.ids, batch.positions, batch.mask)
    learned = batch.weights > 0
    logits = model.logits(hidden[learned])
    return F.cross_entropy(logits, batch.targets[learned]), int(learned.sum())


@torch.no_grad()
def held_out_loss(model: PocketModel, kept: list[Document]) -> float:
    """The loss on steps that are not trained on."""
    parts = [loss_of(model, one) for one in batches(kept, ROW, 1, Random(0))]
    return float(sum(loss * tokens for loss, tokens in parts) / sum(count for _, count in parts))


class Learner:
    """Training of a copy: model, optimizer, where it stands, and its checkpoint."""

    def __init__(self, model: str, out: Path, epochs: int, seed: int, rate: float = RATE) -> None:
        self.out, self.epochs, self.seed, self.base, self.rate = out, epochs, seed, model, rate
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(weights(model))
        self.model = PocketModel.of_hf(weights(model))
        self.optimizer = Optimizer(self.model)
        self.epoch, self.seconds, self.curve = 0, 0.0, list[dict[str, float]]()
        self.best = self.model.state_dict()
        self.checkpoint = out.with_suffix(".pt")
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self.epoch, self.seconds, self.curve = state["epoch"], state["seconds"], state["curve"]
            self.model.load_state_dict(state["model"])
            self.best = state["best"]
            self.optimizer.load_state_dict(state["optimizer"])

    def save(self) -> None:
        """Write the checkpoint; a crash while writing leaves the previous one."""
        state = {
            "epoch": self.epoch,
            "seconds": self.seconds,
            "curve": self.curve,
            "model": self.model.state_dict(),
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
        }
        part = self.checkpoint.with_suffix(".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, part)
        part.replace(self.checkpoint)

    def run(self, rows: Sequence[dict[str, Any]]) -> None:
        """Train to the last epoch, then write the model of the epoch with the least loss on the
        questions that are kept.
        """
        train, kept = (documents(self.tokenizer, of) for of in apart(rows))
        if not self.curve:
            self._note(float("nan"), kept)
        while self.epoch < self.epochs:
            began, total, tokens = time.monotonic(), 0.0, 0
            shuffled = list(batches(train, ROW, ROWS, Random(f"{self.seed} {self.epoch}")))
            for number, batch in enumerate(shuffled):
                loss, count = loss_of(self.model, batch)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                left = 1 - (self.epoch + number / len(shuffled)) / self.epochs
                begun = (self.epoch * len(shuffled) + number + 1) / WARM_UP
                self.optimizer.step(self.rate * min(1.0, begun) * max(0.01, left))
                total, tokens = total + loss.item() * count, tokens + count
            self.epoch += 1
            self.seconds += time.monotonic() - began
            self._note(total / tokens, kept)
            self.save()
        self.model.load_state_dict(self.best)
        self.export(len(rows))

    def _note(self, loss: float, kept: list[Document]) -> None:
        held_out = held_out_loss(self.model, kept)
        if held_out < min((one["held_out"] for one in self.curve), default=float("inf")):
            self.best = {name: value.clone() for name, value in self.model.state_dict().items()}
        point = {"epoch": self.epoch, "loss": round(loss, 4), "held_out": round(held_out, 4)}
        self.curve.append(point)
        log.info("epoch %(epoch)d: loss %(loss).4f, on kept questions %(held_out).4f", point)

    def export(self, steps: int) -> None:
        """Write the model, and beside it how it was trained."""
        export(self.model, self.tokenizer, self.out)
        record = {
            "role": f"{self.base}, learned",
            "seed": self.seed,
            "rate": self.rate,
            "steps": steps,
            "seconds": round(self.seconds),
            "curve": [
                {name: value for name, value in point.items() if value == value}
                for point in self.curve
            ],
        }
        (self.out / "training.json").write_text(json.dumps(record, indent=1) + "\n")


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the copy.")
@click.option("--model", default="draft-40", show_default=True, help="Which draft to copy.")
@click.option("--epochs", type=int, default=6, show_default=True)
@click.option("--rate", type=float, default=RATE, show_default=True, help="Of the first training.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True, help="Threads of PyTorch.")
def main(
    files: tuple[Path, ...],
    out: Path,
    model: str,
    epochs: int,
    rate: float,
    seed: int,
    threads: int,
) -> None:
    """Train a copy of a draft on the steps in FILES (sft-lookahead.jsonl); resumes from its checkpoint."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    rows = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    Learner(model, out, epochs, seed, rate).run(rows)


if __name__ == "__main__":
    main()
