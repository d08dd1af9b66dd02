"""The pocket models that think: the prompts that they learn from, and what is shipped."""

from __future__ import annotations

from random import Random

import pytest
from transformers import AutoTokenizer

from lr_sglang.pocket import THINKING, weights
from tools.pocket.heldout import held_out_problems
from tools.pocket.model import PocketModel
from tools.pocket.thinking import (
    AS_JSON,
    FORMS,
    THINKING_TEMPLATE,
    TOOL,
    TOOLS,
    expression,
    parts,
)

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
