"""Answers of a pocket target to many training problems, as the rows that ``lr-sglang report
--export pairs`` makes of a run with ``--mode autoregressive``: sampled by transformers in batches,
without servers, for ``tools.pocket.learn``. Stopped at any moment, the same command goes on.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import click
import torch

from lr_sglang.pocket import weights
from tools.pocket.heldout import training_problems
from tools.pocket.problems import DELIMITER
from tools.pocket.sampling import BATCH, TEMPERATURE, Writer, steps_of
from tools.pocket.tokenizer import chat

log = logging.getLogger(__name__)


def rows(question_id: str, question: str, solution: str) -> list[dict[str, object]]:
    """A row for each step of an answer."""
    steps, made, prefix = steps_of(solution), [], ""
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        text = step if last else step + DELIMITER
        made.append(
            {
                "prompt": [{"role": "user", "content": question}],
                "completion": [{"role": "assistant", "content": prefix + text}],
                "completion_ends": last,
                "verdict": "",
                "alone": "the target wrote alone",
                "prefix": len(prefix),
                "by": "",
                "question_id": question_id,
                "sample": 0,
                "step": number,
            }
        )
        prefix += text
    return made


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--first", type=int, default=1, show_default=True, help="Of the training problems.")
@click.option("--last", type=int, required=True, help="Of the training problems.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True, help="Threads of PyTorch.")
def main(out: Path, first: int, last: int, seed: int, threads: int) -> None:
    """Write the target's answers to training problems FIRST to LAST to OUT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(threads)
    chosen = list(enumerate(training_problems(last), 1))[first - 1 :]
    done = set()
    if out.exists():
        lines = out.read_text("utf-8").splitlines()
        done = {json.loads(line)["question_id"] for line in lines}
    named = [(f"training-{number:04}", p.question) for number, p in chosen]
    left = [(name, question) for name, question in named if name not in done]
    writer = Writer(weights("target"))
    out.parent.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(left), BATCH):
        part = left[start : start + BATCH]
        torch.manual_seed(seed * 100_000 + int(part[0][0].rpartition("-")[2]))
        texts = writer.write([chat(question) for _, question in part], TEMPERATURE)
        with out.open("a", encoding="utf-8") as file:
            for (name, question), text in zip(part, texts, strict=True):
                file.writelines(json.dumps(row) + "\n" for row in rows(name, question, text))
        log.info("%d of %d problems", len(done) + start + len(part), len(chosen))


if __name__ == "__main__":
    main()
