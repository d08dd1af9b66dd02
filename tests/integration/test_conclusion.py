"""What follows the thinking of a judged answer is the target's own, by a seed that the record has."""

from __future__ import annotations

from typing import Any

import pytest

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.frontend.dsl import run_program
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.sglang_api.draws import place_of
from lr_sglang.steps.tree import Verdict
from lr_sglang.verifiers.exact import Exact
from tests.scripted import END, ScriptedTransport, deployment, goes_on
from tests.simulated.clock import run_virtually

QUESTION = [{"role": "user", "content": "How?"}]
THOUGHT = "first\n\nsecond"
TARGET = f"{THOUGHT}</think>\n\nthe answer\n\nis nine" + chr(END)
DRAFT = "FIRST\n\nsecond</think>\n\nTHE ANSWER\n\nIS TEN" + chr(END)


class Anything:
    """Accepts whatever the draft wrote."""

    name = "anything"

    def verify(self, inquiry: Any) -> Verdict:
        return Verdict(True, self.name)


def alike(whole: str) -> Any:
    """Writes on after the same words in any case."""

    def write(text: str, sampling: dict[str, Any]) -> str:
        if whole.lower().startswith(text.lower()):
            return whole[len(text) :]
        return goes_on(whole)(text, sampling)

    return write


def answer(
    target: str = TARGET, draft: str = DRAFT, *, exact: bool = True, **more: Any
) -> tuple[AnswerRequest, ScriptedTransport, str]:
    servers = {"target": ScriptedTransport(alike(target)), "draft": ScriptedTransport(alike(draft))}
    servers["target"].seconds = lambda text: 0.01
    backend = deployment(**servers)
    limits = Limits(max_tokens=more.pop("max_tokens", 400))
    job = AnswerRequest(
        Lookahead(**more), Sampling(temperature=0.6, seed=5), limits, verifier=Anything()
    )
    if exact:
        job.conclusion = Exact()
    state = run_virtually(run_program(lookahead, messages=QUESTION, job=job, backend=backend))
    return job, servers["target"], state.text()


@pytest.mark.parametrize("schedule", ["async", "sync"])
@pytest.mark.parametrize("policy", ["fixed", "adaptive"])
def test_the_thinking_is_judged_and_the_conclusion_is_the_targets(
    schedule: str, policy: str
) -> None:
    job, target, text = answer(schedule=schedule, policy=policy)
    trace = job.trace
    thought, _, said = trace.text.partition("</think>")
    assert said == "\n\nthe answer\n\nis nine" and text.endswith(trace.text)
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
    job, target, _ = answer()
    seed = job.trace.conclusion["seed"]
    after = [one for one in target.requests if one["text"].endswith("</think>")]
    drawn = [one["sampling_params"] for one in after]
    drawn = [one for one in drawn if one["sampling_seed"] == seed]
    assert drawn and all(place_of(one.get("custom_params")) == 0 for one in drawn)
    assert seed != job.sampling.seed


def test_without_it_the_whole_answer_is_judged() -> None:
    job, _, _ = answer(exact=False)
    assert job.trace.text.endswith("IS TEN") and not job.trace.conclusion


@pytest.mark.parametrize("max_tokens", [*range(12, 30), 33])
def test_a_budget_that_ends_around_the_end_of_the_thinking_is_exact(max_tokens: int) -> None:
    job, _, _ = answer(max_tokens=max_tokens)
    assert len(job.trace.ids) == max_tokens and job.trace.finish == "length"
    assert job.trace.text.lower() == TARGET[:max_tokens].lower()
    said = job.trace.text.partition("</think>")[2]
    assert said == said.lower()


@pytest.mark.parametrize("closing", ["</think>", "x</think> so", "</think>" + chr(END)])
def test_the_thinking_ends_at_its_marker_whatever_stands_around_it(closing: str) -> None:
    whole = f"{THOUGHT}\n\n{closing}\n\nit is nine" + chr(END)
    job, _, _ = answer(whole, whole.upper().replace("THINK", "think"))
    said = job.trace.text.partition("</think>")[2]
    assert said == said.lower()
    before = job.trace.steps[: job.trace.conclusion["step"]]
    assert "".join(step.text for step in before).endswith("</think>")
