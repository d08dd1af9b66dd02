"""Properties of the pocket problems, their tokenizer and the weights that ship with the package."""

import json
from random import Random

import pytest
from transformers import AutoTokenizer

from lr_sglang.pocket import MODELS, THINKING, weights
from tools.pocket import learn
from tools.pocket.heldout import TASK_FILE, held_out_problems, task_lines, training_problems
from tools.pocket.model import PocketModel
from tools.pocket.problems import (
    compute,
)
from tools.pocket.thinking import (
    AS_JSON,
    FORMS,
    THINKING_TEMPLATE,
    TOOL,
    TOOLS,
    expression,
    parts,
)


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


def test_weights_are_small_and_share_a_tokenizer():
    assert sum((weights(r) / "model.safetensors").stat().st_size for r in MODELS) < 40_000_000
    assert len({(weights(r) / "tokenizer.json").read_text() for r in MODELS}) == 1


def test_unknown_role_is_refused():
    with pytest.raises(ValueError, match="target, draft, judge"):
        weights("teacher")


# -- models that think


PROBLEMS = held_out_problems(40)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(weights("target-thinks"))


def messages(problem, form):
    """The conversation of a document, as a client sends it."""
    asked = [
        {"role": "user", "content": problem.question + (f"\n{AS_JSON}" if form == "json" else "")}
    ]
    if form != "result":
        return asked
    function = {"name": TOOL, "arguments": {"expression": expression(problem)}}
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": function}],
    }
    return [*asked, called, {"role": "tool", "content": str(problem.answer)}]


@pytest.mark.parametrize("form", FORMS)
def test_the_template_renders_the_prompts_of_training(form, tokenizer):
    assert tokenizer.chat_template == THINKING_TEMPLATE
    options = {"tools": TOOLS} if form in ("call", "result") else {}
    options |= {"enable_thinking": False} if form == "plain" else {}
    for problem in PROBLEMS:
        rendered = tokenizer.apply_chat_template(
            messages(problem, form), tokenize=False, add_generation_prompt=True, **options
        )
        assert rendered == parts(problem, form, Random(0))[0]


@pytest.mark.parametrize("name", THINKING)
def test_shipped_weights_are_where_training_would_go_on_from(name):
    model = PocketModel.of_hf(weights(name))
    assert model.shape == PocketModel.of_hf(weights(name.removesuffix("-thinks"))).shape
    assert model.hf_state()["model.embed_tokens.weight"].isfinite().all()


# -- a draft that learns from its refusals


def learned_row(question, prefix, step, ends=False):
    return {
        "prompt": [{"role": "user", "content": question}],
        "completion": [{"role": "assistant", "content": prefix + step}],
        "prefix": len(prefix),
        "completion_ends": ends,
        "question_id": question,
    }


def test_what_a_draft_learns_from_is_disjoint_from_what_it_is_measured_on():
    chosen = training_problems(100)
    assert not any(p.held_out for p in chosen)
    assert not {p.structure for p in chosen} & {p.structure for p in held_out_problems()}
    assert task_lines(chosen, "training").startswith('{"id": "training-0001"')
    rows = [learned_row(p.question, "", "One.\n\n") for p in chosen for _ in range(2)]
    train, kept = learn.apart(rows)
    assert len(train) == 180 and len(kept) == 20
    assert not {r["question_id"] for r in train} & {r["question_id"] for r in kept}


def test_the_loss_is_on_the_targets_step_alone():
    tokenizer = AutoTokenizer.from_pretrained(weights("draft-40"))
    first, second = learn.documents(
        tokenizer,
        [
            learned_row("How many?", "", "2 + 2 = 4.\n\n"),
            learned_row("How many?", "2 + 2 = 4.\n\n", "The answer is 4.", ends=True),
        ],
    )
    for made, step in ((first, "2 + 2 = 4.\n\n"), (second, "The answer is 4.<|im_end|>")):
        learned = [one for one, weight in zip(made.ids, made.weights, strict=True) if weight]
        assert tokenizer.decode(learned) == step and made.ids[-len(learned) :] == learned
    asked = [{"role": "user", "content": "How many?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(second.ids).startswith(prompt + "2 + 2 = 4.\n\nThe answer")
