"""Properties of the pocket problems, their tokenizer and the weights that ship with the package."""

from __future__ import annotations

import json
import re
from random import Random

import pytest
from safetensors import safe_open
from transformers import AutoTokenizer

from lr_sglang.pocket import MODELS, WEAK_DRAFTS, WEIGHTS, weights
from tests import examples
from tools.pocket.card import model_card
from tools.pocket.heldout import TASK_FILE, held_out_problems, task_lines
from tools.pocket.meaning import meaning
from tools.pocket.problems import (
    Operation,
    Problem,
    compute,
    make_problem,
)
from tools.pocket.recipe import RECIPES
from tools.pocket.wordings import BOXES, GOODS, NAMES, OPERATORS, STEPS, THINGS

WORDS = {"who": "Ava", "other": "Ben", "thing": "apples", "box": "bags"}


def sample(count: int, seed: int = 5) -> list[Problem]:
    rng = Random(seed)
    return [make_problem(rng) for _ in range(count)]


def masked(question: str) -> str:
    """The question with every name and noun replaced by its order of appearance."""
    seen: dict[str, str] = {}
    words = "|".join((*NAMES, *THINGS, *GOODS, *(g.capitalize() for g in GOODS), *BOXES))
    return re.sub(
        rf"\b({words})\b", lambda m: seen.setdefault(m[0].lower(), f"w{len(seen)}"), question
    )


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(weights("target"))


@pytest.mark.parametrize("kind", STEPS)
def test_meaning_is_read_from_every_wording(kind):
    a, b = 12, 4
    o = Operation(kind, a, b, compute(OPERATORS[kind], a, b), WORDS)
    x, y = (b, a) if o.operator in "+*" else (a, b)
    rng, texts = Random(0), set()
    for _ in range(400):
        text = o.render(rng)
        texts.add(text)
        assert meaning(text) == f"{x}{o.operator}{y}={o.result}"
    assert len(texts) >= 4 * len(STEPS[kind]) >= 24


def test_names_and_wordings_do_not_move_a_problem_across_the_split():
    trained, kept = set(), set()
    for problem in sample(examples(5_000)):
        (kept if problem.held_out else trained).add(masked(problem.question))
    assert len(kept) > examples(250)
    assert not trained & kept


def test_task_file_is_what_the_generator_writes_and_is_held_out():
    chosen = held_out_problems()
    for o in chosen[0].operations:
        assert o.result == compute(o.operator, o.a, o.b)
    assert TASK_FILE.read_text() == task_lines(chosen)
    rows = [json.loads(line) for line in TASK_FILE.read_text().splitlines()]
    assert len(rows) == len({p.structure for p in chosen}) == 200
    assert all(p.held_out for p in chosen)
    assert rows[0]["id"] == "pocket-0001" and set(rows[0]) == {
        "id",
        "question",
        "answer",
        "operations",
    }


@pytest.mark.parametrize("role", MODELS)
def test_weights_are_bf16_of_the_recipes_shape(role):
    config = json.loads((weights(role) / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["num_hidden_layers"] == RECIPES[role].stages[-1].layers
    assert config["tie_word_embeddings"] and config["max_position_embeddings"] >= 4096
    with safe_open(weights(role) / "model.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118
    generation = json.loads((weights(role) / "generation_config.json").read_text())
    assert config["eos_token_id"] in generation["eos_token_id"]


def test_weights_are_small_and_share_a_tokenizer():
    assert sum((weights(r) / "model.safetensors").stat().st_size for r in MODELS) < 31_000_000
    assert len({(weights(r) / "tokenizer.json").read_text() for r in MODELS}) == 1


def test_the_card_is_what_the_figures_say():
    figures = json.loads((WEIGHTS / "figures.json").read_text())
    assert (WEIGHTS / "MODEL_CARD.md").read_text() == model_card(figures)


def test_the_weak_drafts_are_as_weak_as_they_are_called():
    figures = json.loads((WEIGHTS / "figures.json").read_text())
    for name in WEAK_DRAFTS:
        assert figures[f"steps_by_{name}"]["accepted"] == pytest.approx(
            int(name[-2:]) / 100, abs=0.06
        )


def test_unknown_role_is_refused():
    with pytest.raises(ValueError, match="target, draft, judge"):
        weights("teacher")
