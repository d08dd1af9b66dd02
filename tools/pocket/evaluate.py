"""Measure the pocket models on held-out problems and write their model card.

``python -m tools.pocket.evaluate`` takes a few minutes on a CPU; figures go to ``figures.json`` and
``MODEL_CARD.md`` beside the weights.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from random import Random
from typing import Any

import click
import torch

from lr_sglang.pocket import (
    HYBRID,
    KNOWS_OTHER_WORDS,
    MODELS,
    OTHER_WORDS,
    THINKING,
    WEIGHTS,
)
from tools.pocket.card import model_card
from tools.pocket.heldout import held_out_problems
from tools.pocket.meaning import same_meaning
from tools.pocket.pairs import make_pair
from tools.pocket.problems import Problem, boxed_answer
from tools.pocket.sampling import TEMPERATURE, Writer, sample_pairs
from tools.pocket.thinking import FORMS, parts
from tools.pocket.tokenizer import chat

log = logging.getLogger(__name__)
SYNTHETIC_PAIRS = 2000


def accuracy(writer: Writer, chosen: list[Problem], temperature: float) -> dict[str, Any]:
    """Share of right boxed answers, over all problems and by number of operations."""
    texts = writer.write([chat(p.question) for p in chosen], temperature)
    right = [boxed_answer(text) == str(p.answer) for p, text in zip(chosen, texts, strict=True)]
    by_size: dict[int, list[bool]] = {}
    for problem, ok in zip(chosen, right, strict=True):
        by_size.setdefault(len(problem.operations), []).append(ok)
    return {
        "n": len(right),
        "accuracy": _share(right),
        "by_operations": {size: _share(values) for size, values in sorted(by_size.items())},
    }


def agreement(verdicts: list[bool], truth: list[bool]) -> dict[str, Any]:
    """Precision and recall of verdicts against the truth."""
    both = sum(v and t for v, t in zip(verdicts, truth, strict=True))
    return {
        "n": len(truth),
        "same": _share(truth),
        "accepted": _share(verdicts),
        "precision": round(both / max(1, sum(verdicts)), 4),
        "recall": round(both / max(1, sum(truth)), 4),
    }


def acceptance(
    target: Writer, draft: Writer, judge: Writer, chosen: list[Problem], seed: int
) -> dict[str, Any]:
    """Both models' versions of each step after the same prefix: agreement by truth, judge and exact
    text.
    """
    pairs = sample_pairs(target, draft, chosen, seed, twice=False)
    stripped = [(a.strip(), b.strip()) for a, b in pairs]
    truth = [same_meaning(a, b) for a, b in stripped]
    return agreement(judge.judge(stripped), truth) | {
        "exact_text": _share([a == b for a, b in stripped])
    }


def synthetic(judge: Writer, seed: int) -> dict[str, Any]:
    """The judge on made-up pairs of held-out problems, near misses among them."""
    rng = Random(seed)
    made = [make_pair(rng, held_out=True) for _ in range(SYNTHETIC_PAIRS)]
    return agreement(judge.judge([(a, b) for a, b, _ in made]), [same for *_, same in made])


def conclusions(writer: Writer, chosen: list[Problem]) -> dict[str, float]:
    """The share of right conclusions at temperature 0, by form: of right answers, for calls and
    JSON of exact texts.
    """
    found = {}
    for form in FORMS:
        made = [parts(problem, form, Random(0)) for problem in chosen]
        ends = [
            text.partition("</think>")[2] or text
            for text in writer.write([prompt for prompt, *_ in made], 0.0)
        ]
        exact = form in ("call", "json")
        found[form] = _share(
            [
                end == wanted if exact else boxed_answer(end) == str(problem.answer)
                for problem, (_, _, wanted), end in zip(chosen, made, ends, strict=True)
            ]
        )
    return found


def _share(values: list[bool]) -> float:
    return round(sum(values) / max(1, len(values)), 4)


def evaluate(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """All figures of the models in ``folder``."""
    chosen = held_out_problems(count)
    here = [name for name in MODELS if (folder / name).exists()]
    writers = {name: Writer(folder / name) for name in here}
    target, drafts = (
        writers["target"],
        [name for name in here if name.startswith("draft") and name not in THINKING],
    )
    figures: dict[str, Any] = {"seed": seed}
    targets = ("target", HYBRID, KNOWS_OTHER_WORDS)
    for model in (*(name for name in targets if name in here), *drafts):
        for name, temperature in (("greedy", 0.0), ("sampled", TEMPERATURE)):
            torch.manual_seed(seed)
            figures[f"{model}_{name}"] = accuracy(writers[model], chosen, temperature)
            log.info("%s %s %s", model, name, figures[f"{model}_{name}"])
    if "judge" in here:
        judge = writers["judge"]
        for draft in drafts:
            by = writers[KNOWS_OTHER_WORDS] if draft == OTHER_WORDS else target
            figures[f"steps_by_{draft}"] = acceptance(by, writers[draft], judge, chosen, seed)
        figures["steps_by_target_alone"] = acceptance(target, target, judge, chosen, seed + 1)
        figures["judge_synthetic"] = synthetic(judge, seed)
        log.info("%s", {k: v for k, v in figures.items() if k[0] in "sj"})
    figures["conclusions"] = {
        name: conclusions(writers[name], chosen) for name in here if name in THINKING
    }
    figures["models"] = {
        name: json.loads((folder / name / "training.json").read_text())
        | {"bytes": (folder / name / "model.safetensors").stat().st_size}
        for name in here
    }
    return figures


@click.command()
@click.option("--weights", "folder", type=click.Path(path_type=Path, exists=True), default=WEIGHTS)
@click.option("--count", type=int, default=200, show_default=True, help="Held-out problems.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True)
def main(folder: Path, count: int, seed: int, threads: int) -> None:
    """Measure the models and write their model card."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(threads)
    figures = evaluate(folder, count, seed)
    (folder / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    if set(MODELS) <= set(figures["models"]):
        (folder / "MODEL_CARD.md").write_text(model_card(figures))


if __name__ == "__main__":
    main()
