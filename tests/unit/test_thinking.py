"""How models mark their thinking: the table, and harmony (gpt-oss), whose markers are special
tokens.
"""

import pytest

from lr_sglang.delivery.stream_text import Reasoning, StreamText
from lr_sglang.engine.tokenizer import ModelTokenizer, resolve, thinks
from lr_sglang.grading.answers import final_answer
from lr_sglang.steps.step import (
    DELIMITER,
    MARKER_FAMILIES,
    TAGS,
    Ending,
    make_step,
    markers_of,
    same_ending,
    split_ids,
    text_after_thinking,
)
from lr_sglang.steps.token_text import TokenText
from tests.trained import byte_level, saved

HARMONY = MARKER_FAMILIES[0]
TOKENS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
# The turns of gpt-oss: every message names its channel, and an answer begins by naming one.
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}"
    "{% endfor %}{# <|channel|>analysis<|message|> #}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
THOUGHT, SAID = "Two and two.\n\nThat is 4.", "It is \\boxed{4}."


@pytest.fixture(scope="module")
def gpt(tmp_path_factory) -> ModelTokenizer:
    """A tokenizer with harmony's tokens and turns."""
    raw = byte_level("assistant analysis final user Two and two. That is 4.", 320)
    ends = {"eos_token": "<|return|>", "chat_template": TEMPLATE}
    return saved(raw, tmp_path_factory.mktemp("harmony"), TOKENS, **ends)


ANSWER = f"{HARMONY.opens}{THOUGHT}{HARMONY.closes}{SAID}"


@pytest.mark.parametrize("family", MARKER_FAMILIES, ids=lambda one: one.parser)
def test_the_markers_are_those_of_sglangs_own_parser(family):
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    parser = ReasoningParser.DetectorMap[family.parser]()
    assert parser.think_start_token == family.opens
    # of harmony SGLang names the end of the message, which one more of the same channel may follow
    assert family.closes.startswith(parser.think_end_token)
    assert markers_of(f"... {family.opens} ...") == family
    assert text_after_thinking(f"{family.opens}so{family.closes}4") == "4"
    assert text_after_thinking(f"{family.opens}so") == ""


def test_a_model_without_markers_counts_as_one_with_tags():
    assert markers_of("a template") is TAGS
    assert text_after_thinking("no thinking") == "no thinking"


def test_harmonys_markers_are_text_and_its_other_tokens_are_not(gpt):
    ids = gpt.raw(ANSWER + "<|return|>")
    assert gpt.thinking == HARMONY and thinks(gpt)
    assert gpt.decode(ids) == ANSWER
    assert gpt.special(ids) == ids[-1:]
    assert gpt.encode(ANSWER, True) == ids[:-1]
    assert resolve(TokenText.wrap(HARMONY.closes), gpt) == gpt.raw(HARMONY.closes)


@pytest.mark.parametrize("token", TOKENS)
def test_nobodys_text_becomes_a_role_of_harmony(gpt, token):
    asked = [{"role": "user", "content": f"a{token}b"}]
    prompt = resolve(gpt.chat(asked, True), gpt)
    plain = resolve(gpt.chat([{"role": "user", "content": "ab"}], True), gpt)
    of_roles = [one for one in plain if gpt.spell([one]) in TOKENS]
    assert [one for one in prompt if gpt.spell([one]) in TOKENS] == of_roles
    # a beginning of an answer may have the whole markers, and no part of them alone
    assert not [one for one in gpt.encode(f"a{token}b", True) if gpt.spell([one]) in TOKENS]


def test_a_step_knows_that_harmonys_thinking_ends_in_it(gpt):
    steps = split_ids(gpt.raw(ANSWER + "<|return|>"), "stop", gpt, gpt.ends)
    assert [step.closes_thinking for step in steps] == [False, True]
    assert "".join(step.text for step in steps) == ANSWER
    goes_on = make_step(gpt.raw("That is 4.<|return|>"), "stop", steps[0], gpt, gpt.ends)
    assert goes_on.ending is steps[1].ending is Ending.END
    assert not same_ending(goes_on, steps[1])


def test_the_end_of_harmonys_thinking_may_be_spread_over_cut_steps(gpt):
    ids = gpt.raw(f"That is 4.{HARMONY.closes}It is.")
    for cut in range(1, len(ids)):
        first = make_step(ids[:cut], "length", None, gpt, gpt.ends)
        second = make_step(ids[cut:], "length", first, gpt, gpt.ends)
        assert first.closes_thinking != second.closes_thinking


# what is before the turn's own text, that text, and whether the thinking has ended
TURNS = [
    ("", "", False),
    ("", "{thought}", False),
    ("", "{thought}{closes}", True),
    ("", "{opens}{thought}{closes}said", True),
    ("", "{opens}{thought}{closes}said{opens}", False),
    ("{opens}", "{thought}", False),
    ("{opens}", "{thought}{closes}", True),
    ("{opens}", " {closes}", False),
    ("{opens}{thought}{closes}", "", True),
    ("{opens} {closes}", "said", False),
    ("{opens} {closes}", "{thought}{closes}", True),
    ("a question with {closes}", "", False),
    ("a question with {closes}{opens}", "{thought}", False),
]


@pytest.mark.parametrize("family", MARKER_FAMILIES, ids=lambda one: one.parser)
@pytest.mark.parametrize(("prompt", "written", "ended"), TURNS)
def test_the_thinking_of_a_turn_has_ended_where_its_marker_follows_a_thought(
    family, prompt, written, ended
):
    marks = {"opens": family.opens, "closes": family.closes, "thought": THOUGHT}
    assert family.ended(prompt.format(**marks), written.format(**marks)) == ended


@pytest.mark.parametrize("size", [1, 3, 100])
def test_reasoning_and_answer_of_harmony_are_told_apart(gpt, size):
    ids = gpt.raw(ANSWER)
    stream = StreamText(gpt.decode, (), Reasoning(markers=HARMONY))
    parts = [c for at in range(0, len(ids), size) for c in stream.add(ids[at : at + size])]
    parts += stream.rest()
    said = {
        kind: "".join(c.text for c in parts if c.kind == kind) for kind in ("reasoning", "content")
    }
    assert said == {"reasoning": THOUGHT, "content": SAID}
    assert stream.reasoning_tokens == len(gpt.raw(f"{HARMONY.opens}{THOUGHT}{HARMONY.closes}"))


@pytest.mark.parametrize("family", MARKER_FAMILIES, ids=lambda one: one.parser)
def test_an_answer_is_graded_after_the_thinking(family):
    thought = f"{family.opens}Is it \\boxed{{3}}?"
    assert final_answer(f"{thought}{family.closes}{SAID}") == "4"
    assert final_answer(thought) is None
    assert DELIMITER not in family.closes  # else a step would end inside it
