"""The pocket models that think: what they learn from, and that SGLang knows their form."""

from __future__ import annotations

import json
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
    call,
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


def test_sglang_finds_its_parsers_by_the_template_and_the_call_by_them():
    detection = pytest.importorskip("sglang.srt.parser.template_detection")
    detector = pytest.importorskip("sglang.srt.function_call.qwen25_detector").Qwen25Detector()
    tool = pytest.importorskip("sglang.srt.entrypoints.openai.protocol").Tool
    always, toggle = detection.detect_reasoning_pattern(THINKING_TEMPLATE)
    found = [
        find(THINKING_TEMPLATE, None, toggle, always)
        for find in (detection.detect_tool_call_parser, detection.detect_reasoning_parser)
    ]
    assert found == ["qwen", "qwen3"] and not always
    (one,) = detector.detect_and_parse(call(PROBLEMS[0]), [tool(**TOOLS[0])]).calls
    assert one.name == TOOL and json.loads(one.parameters) == {
        "expression": expression(PROBLEMS[0])
    }


@pytest.mark.parametrize("name", THINKING)
def test_shipped_weights_are_where_training_would_go_on_from(name):
    model = PocketModel.of_hf(weights(name))
    assert model.shape == PocketModel.of_hf(weights(name.removesuffix("-thinks"))).shape
    assert model.hf_state()["model.embed_tokens.weight"].isfinite().all()
