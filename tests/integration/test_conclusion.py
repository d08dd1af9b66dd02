"""What follows the thinking of a judged answer is the target's own, by a seed that the record has."""

from __future__ import annotations

from typing import Any

import pytest
import sglang as sgl

import lr_sglang as lr
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.sglang_api.plugin_protocol import place_of
from lr_sglang.steps.token_text import TokenText
from lr_sglang.user_programs.lookahead_backend import LookaheadBackend
from lr_sglang.user_programs.program import Program, perform
from lr_sglang.verifiers.exact import Exact
from tests.scripted import END, Agreeing, ScriptedTransport, Writer, answered, deployment, goes_on
from tests.simulated.clock import run_virtually

QUESTION = [{"role": "user", "content": "How?"}]
THOUGHT = "first\n\nsecond"
TARGET = f"{THOUGHT}</think>\n\nthe answer\n\nis nine" + chr(END)
DRAFT = "FIRST\n\nsecond</think>\n\nTHE ANSWER\n\nIS TEN" + chr(END)


def alike(whole: str) -> Any:
    """Writes on after the same words in any case."""

    def write(text: str, sampling: dict[str, Any]) -> str:
        if whole.lower().startswith(text.lower()):
            return whole[len(text) :]
        return goes_on(whole)(text, sampling)

    return write


def servers(target: Writer, draft: Writer) -> dict[str, ScriptedTransport]:
    made = {"target": ScriptedTransport(target), "draft": ScriptedTransport(draft)}
    made["target"].seconds = lambda text: 0.01
    return made


def answer(
    target: str = TARGET,
    draft: str = DRAFT,
    *,
    exact: bool = True,
    messages: Any = QUESTION,
    **more: Any,
) -> tuple[AnswerRequest, ScriptedTransport]:
    asked = servers(alike(target), alike(draft))
    limits = Limits(max_tokens=more.pop("max_tokens", 400))
    request = AnswerRequest(
        Lookahead(**more), Sampling(temperature=0.6, seed=5), limits, verifier=Agreeing()
    )
    if exact:
        request.conclusion_verifier = Exact()
    answered(deployment(**asked), request, messages=messages, virtually=True)
    return request, asked["target"]


@pytest.mark.parametrize("schedule", ["async", "sync"])
@pytest.mark.parametrize("policy", ["fixed", "adaptive"])
def test_the_thinking_is_judged_and_the_conclusion_is_the_targets(
    schedule: str, policy: str
) -> None:
    request, target = answer(schedule=schedule, policy=policy)
    trace = request.trace
    thought, _, said = trace.text.partition("</think>")
    assert said == "\n\nthe answer\n\nis nine"
    assert "".join(step.text for step in trace.steps) == trace.text
    assert trace.lossless == "" and trace.finish == "stop"
    assert trace.conclusion["text"] == "text"
    before = trace.steps[: trace.conclusion["step"]]
    assert "".join(step.text for step in before) == thought + "</think>"
    assert trace.conclusion["tokens"] == sum(step.tokens for step in before)
    counts = trace.tokens()
    assert counts["judged"] == sum(s.tokens for s in before if s.source == "draft") > 0
    assert counts["judged"] + counts["own"] == counts["used"] == len(trace.ids)
    assert counts["generated"] == counts["used"] + counts["wasted"]
    assert trace.judged <= len(before)
    assert all(b.outcome is not None and b.result is None for b in trace.branches)
    assert not target.running


def test_the_requests_of_a_conclusion_have_its_seed_and_places_from_its_beginning() -> None:
    request, target = answer()
    seed = request.trace.conclusion["seed"]
    after = [one for one in target.requests if one["text"].endswith("</think>")]
    drawn = [one["sampling_params"] for one in after]
    drawn = [one for one in drawn if one["sampling_seed"] == seed]
    assert drawn and all(place_of(one.get("custom_params")) == 0 for one in drawn)
    assert seed != request.sampling.seed


def test_without_it_the_whole_answer_is_judged() -> None:
    request, _ = answer(exact=False)
    assert request.trace.text.endswith("IS TEN") and not request.trace.conclusion


@pytest.mark.parametrize("max_tokens", [*range(12, 30), 33])
def test_a_budget_that_ends_around_the_end_of_the_thinking_is_exact(max_tokens: int) -> None:
    request, _ = answer(max_tokens=max_tokens)
    assert len(request.trace.ids) == max_tokens and request.trace.finish == "length"
    assert request.trace.text.lower() == TARGET[:max_tokens].lower()
    said = request.trace.text.partition("</think>")[2]
    assert said == said.lower()


@pytest.mark.parametrize("closing", ["</think>", "x</think> so", "</think>" + chr(END)])
def test_the_thinking_ends_at_its_marker_whatever_stands_around_it(closing: str) -> None:
    whole = f"{THOUGHT}\n\n{closing}\n\nit is nine" + chr(END)
    request, _ = answer(whole, whole.upper().replace("THINK", "think"))
    said = request.trace.text.partition("</think>")[2]
    assert said == said.lower()
    before = request.trace.steps[: request.trace.conclusion["step"]]
    assert "".join(step.text for step in before).endswith("</think>")


class Begun:
    """A prompt whose assistant's turn is begun, by the chat template and by the client."""

    def __init__(self, opened: str, prefix: str = "") -> None:
        self.opened, self.prefix = opened, prefix

    def __call__(self, backend: Any) -> TokenText:
        tokenizer = backend.tokenizer
        earlier = [*QUESTION, {"role": "assistant", "content": "<think>x</think>y"}]
        ids = (*tokenizer.chat(earlier, False).ids, END, *tokenizer.chat(QUESTION, True).ids)
        begun = tokenizer.encode(self.opened + self.prefix, True)
        return TokenText.of(tokenizer.decode((*ids, *begun)), (*ids, *begun), tokenizer.vocabulary)


# how the turn begins, by the template and by the client, and whether the thinking has ended
BEGINNINGS = {
    "by the client": ("", f"{THOUGHT}</think>", True),
    "by the client, after the template's marker": ("<think>", f"{THOUGHT}</think>\n\n", True),
    "by a raw prompt": (f"<think>{THOUGHT}</think>\n\n", "", True),
    "and the client goes on": ("", f"{THOUGHT}</think>\n\nthe answer\n\n", True),
    "it is switched off": ("<think>\n\n</think>\n\n", "", False),
    "it is switched off without an opening": ("</think>", "", False),
    "it is switched off by the client": ("", "<think>\n\n</think>\n\n", False),
    "it begins": ("<think>\n", "", False),
    "it begins again": ("", f"<think>{THOUGHT}</think><think>", False),
    "it goes on": ("<think>", THOUGHT, False),
    "an earlier turn has thought": ("", "", False),
}


@pytest.mark.parametrize("name", BEGINNINGS)
@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_after_a_turn_whose_thinking_has_ended_all_is_the_targets(name: str, schedule: str) -> None:
    opened, prefix, ended = BEGINNINGS[name]
    begun = opened + prefix
    whole = begun + "it is\n\nnine" + chr(END)
    request, target = answer(
        whole,
        begun + "IT IS\n\nTEN" + chr(END),
        messages=Begun(opened, prefix),
        schedule=schedule,
    )
    trace = request.trace
    assert trace.text == ("it is\n\nnine" if ended else "IT IS\n\nTEN")
    assert trace.lossless == "" and bool(trace.conclusion) == ended
    if ended:
        seed = request.concluding().sampling.seed
        assert trace.conclusion == {"step": 0, "tokens": 0, "seed": seed, "text": "text"}
        assert trace.tokens()["judged"] == trace.judged == trace.accepted == 0
        assert {one["sampling_params"]["sampling_seed"] for one in target.requests} == {seed}
    assert not target.running


@sgl.function
def closes_itself(s: Any, messages: Any) -> None:
    lr.converse(s, messages)
    s += lr.lookahead("thought", max_tokens=len(THOUGHT))
    s += "</think>\n\n"
    s += lr.lookahead("said")
    s += sgl.assistant_end()
    s += sgl.user("And?")
    s += sgl.assistant_begin() + lr.lookahead("more", max_tokens=5)
    s["answer"] = s["thought"] + "</think>\n\n" + s["said"]


def performed(program: Any, target: Writer, draft: Writer) -> Any:
    """The record and the target of an answer of a program."""
    asked = servers(target, draft)
    look = Lookahead(depth=2, verifier="random:1")
    backend = LookaheadBackend(deployment(**asked).roles, look, judge_prompt="paper")
    request = AnswerRequest(look, Sampling(temperature=0.6, seed=5), Limits(max_tokens=400))
    run_virtually(perform(Program.load(program), QUESTION, request, backend))
    return request.trace, asked["target"]


def test_a_program_that_ends_the_thinking_itself_goes_on_exactly() -> None:
    trace, target = performed(closes_itself, alike(TARGET), alike(DRAFT))
    assert trace.text == "FIRST\n\nsecond</think>\n\nthe answer\n\nis nine"
    thought, said, more = trace.program["generations"]
    assert "conclusion" not in thought and "conclusion" not in more
    about = said["conclusion"]
    assert (about["step"], about["tokens"], about["text"]) == (0, 0, "text")
    drawn = [
        one["sampling_params"]["sampling_seed"]
        for one in target.requests
        if "</think>" in one["text"]
    ]
    assert drawn and set(drawn) == {about["seed"]}
    first = said["first"]
    assert [step.after_thinking for step in trace.steps] == [
        n >= first for n in range(len(trace.steps))
    ]
    counts = trace.tokens()
    assert counts["judged"] == sum(s.tokens for s in trace.steps[:first] if s.source == "draft") > 0
    assert counts["judged"] + counts["own"] == counts["used"]


@pytest.mark.parametrize("program", ["budget_forcing:waits=0", "budget_forcing:waits=0,most=13"])
def test_what_budget_forcing_concludes_is_the_targets(program: str) -> None:
    def write(text: str, sampling: Any) -> str:
        thought, marker, said = text.partition("</think>\n\n")
        if marker:
            return "the answer\n\nis nine"[len(said) :] + chr(END)
        return THOUGHT[len(thought) :] + "</think>"

    trace, _ = performed(program, write, lambda text, sampling: write(text, sampling).upper())
    assert trace.text.partition("</think>")[2] == "\n\nthe answer\n\nis nine"
    assert trace.program["generations"][-1]["conclusion"]["step"] == 0


def test_what_follows_an_early_end_of_the_thinking_is_the_targets() -> None:
    """The model ends it by itself, in the middle of a stretch and at the end of one."""
    whole = f"{THOUGHT}\n\nso\n\n</think>\n\nthe answer\n\nis nine" + chr(END)

    def write(text: str, sampling: Any) -> str:
        return "7}" if text.endswith("\\boxed{") else alike(whole)(text, sampling)

    drafted = alike(whole.upper().replace("THINK", "think"))
    for every in range(len(THOUGHT), len(whole), 5):
        trace, _ = performed(f"early_exit:agree=99,every={every}", write, drafted)
        assert trace.text.partition("</think>")[2] == "\n\nthe answer\n\nis nine"
