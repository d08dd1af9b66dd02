"""Properties of the pocket problems, their tokenizer and the weights that ship with the package."""

from __future__ import annotations

import json
import re
from random import Random

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, Qwen3ForCausalLM

from lr_sglang.pocket import MODELS, WEAK_DRAFTS, WEIGHTS, weights
from tests import examples
from tools.pocket.card import model_card
from tools.pocket.data import Document, collate
from tools.pocket.heldout import TASK_FILE, held_out_problems, task_lines
from tools.pocket.meaning import meaning
from tools.pocket.model import PocketModel, Shape
from tools.pocket.problems import (
    DELIMITER,
    Operation,
    Problem,
    boxed_answer,
    compute,
    make_problem,
)
from tools.pocket.recipe import RECIPES
from tools.pocket.tokenizer import chat, encode, judge_prompt
from tools.pocket.wordings import ANSWERS, BOXES, GOODS, NAMES, OPERATORS, STEPS, THINGS

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


def test_solution_has_one_step_an_operation_then_the_boxed_answer():
    rng = Random(1)
    for problem in sample(300):
        steps = problem.solution(rng)
        assert len(steps) == len(problem.operations) + 1
        assert boxed_answer(DELIMITER.join(steps)) == str(problem.answer)
        assert not any("\n" in step or step != step.strip() for step in steps)


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


def test_meaning_of_answers_and_of_nothing():
    for template in ANSWERS:
        assert meaning(template.format(c=7)) == "boxed=7"
    assert meaning("") is meaning("Then Ava has 12.") is meaning("12 + = 4") is None
    assert meaning("3 + 2 = 5") == meaning("2 + 3 = 5")
    assert meaning("3 - 2 = 1") != meaning("2 - 3 = 1")
    assert meaning("2 + 3 = 5 and 5 + 1 = 6") not in (
        meaning("2 + 3 = 5"),
        meaning("5 + 1 = 6"),
        None,
    )


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


def test_tokens_that_are_one(tokenizer):
    def pieces(text: str) -> list[str]:
        return [tokenizer.decode([i]) for i in tokenizer.encode(text, add_special_tokens=False)]

    assert pieces("4.\n\nThen") == ["4", ".", "\n\n", "Then"]
    assert pieces(" 12 + 7") == [" 1", "2", " +", " 7"]
    assert pieces("[aligned]") == ["[", "aligned", "]"]
    assert pieces("[unaligned]") == ["[", "unaligned", "]"]
    assert pieces("<|im_end|>") == ["<|im_end|>"] == [tokenizer.eos_token]
    added = tokenizer.get_added_vocab()
    assert not {"aligned", "unaligned"} & set(added)
    assert set(added) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    assert len(tokenizer) <= 1024


def test_chat_template_is_the_prompt_of_training(tokenizer):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    assert tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    ) == chat("Q", "S")
    assert tokenizer.apply_chat_template(
        messages[1:], tokenize=False, add_generation_prompt=True
    ) == chat("Q")
    assert judge_prompt(" a ", "b\n\n") == chat("Step 1: a\nStep 2: b") + "["


def test_packed_documents_do_not_see_each_other():
    torch.manual_seed(0)
    model = PocketModel(Shape(layers=2, hidden=32, mlp=64, heads=2, head_dim=16, vocabulary=64))
    rng = Random(4)
    documents = [Document([rng.randrange(64) for _ in range(n)], [1.0] * n) for n in (9, 12, 7)]
    together = collate([documents], 32)
    alone = collate([[documents[1]]], 32)
    run = {
        name: model(b.ids, b.positions, b.mask, compiled=False)
        for name, b in (("together", together), ("alone", alone))
    }
    assert torch.equal(run["together"][0, 8:19], run["alone"][0, :11])


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


def test_our_model_and_its_export_agree(tokenizer):
    """The training code and transformers compute the same from the shipped draft's weights."""
    twin = Qwen3ForCausalLM.from_pretrained(weights("draft"), dtype=torch.bfloat16).eval()
    ours, state = PocketModel.of_hf(weights("draft")), twin.state_dict()
    with torch.no_grad():
        for name, value in ours.hf_state().items():
            assert torch.equal(state[name], value.bfloat16())
        ids = encode(tokenizer, [chat(sample(1)[0].question)])[0]
        batch = collate([[Document([*ids, 0], [0.0] * (len(ids) + 1))]], len(ids))
        mine = ours.logits(ours(batch.ids, batch.positions, batch.mask, compiled=False))[0, -1]
        theirs = twin(torch.tensor([ids])).logits[0, -1].float()
    assert torch.cosine_similarity(mine, theirs, dim=0) > 0.999
    assert mine.argmax() == theirs.argmax()
