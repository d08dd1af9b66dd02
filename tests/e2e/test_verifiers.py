"""Verifiers that ask the target itself, and fast acceptance, on three real SGLang servers.

The pocket target knows word problems and nothing else: it cannot rate a step, so of ``score`` only the mechanics are
tested.
"""

from __future__ import annotations

import pytest

from lr_sglang import tasks, verifiers
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.pocket.meaning import meaning
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps.trace import Trace
from lr_sglang.steps.tree import Verdict
from tests.e2e.conftest import Pocket, full
from tests.e2e.test_pocket import assert_complete, assert_idle

PROBLEMS = tasks.load("pocket", limit=20 if full else 3)


def answer(pocket: Pocket, question: tasks.Question, look: Lookahead, temperature: float = 0.6) -> Trace:
    job = AnswerRequest(look, Sampling(temperature=temperature), Limits(max_tokens=300), question=question.id)
    job.verifier = verifiers.make(look.verifier, verifiers.Setup(pocket.roles, "pocket"))
    job.fast = verifiers.fast(look, pocket.roles)
    lookahead.run([{"role": "user", "content": question.question}], job, backend=pocket.roles["target"])
    assert_complete(job.record)
    assert not job.record.failures
    return job.record


def verdicts(trace: Trace, by: str) -> list[Verdict]:
    return [v for step in trace.steps for v in step.verdicts if v is not None and v.by == by]


@pytest.mark.parametrize("how", ["mean", "min"])
def test_the_likelihood_of_a_step_costs_its_prefill_and_generates_nothing(pocket: Pocket, how: str) -> None:
    traces = [answer(pocket, q, Lookahead("sync", depth=3, verifier=f"likelihood:{how}")) for q in PROBLEMS]
    given = [v for trace in traces for v in verdicts(trace, "likelihood")]
    assert any(v.accepted for v in given)
    assert all(v.score is not None and v.score <= 0 for v in given)
    for trace in traces:
        asked = trace.of("judge")
        assert sum(b.generated_tokens for b in asked) == 0
        for branch in asked:
            if branch.cached_tokens is not None and branch.ended is not None:
                # all but the step itself (and the token before it) is in the cache
                assert branch.prompt_tokens - branch.cached_tokens <= 101, branch
        assert (trace.tokens()["judge"]["reuse"] or 1.0) >= 0.98
    assert_idle(pocket)


def test_what_the_target_writes_greedily_is_likelier_than_another_result(pocket: Pocket) -> None:
    """The least likely token tells a wrong figure from another wording."""
    found = []
    for question in PROBLEMS:
        look = Lookahead("sync", depth=2, verifier="cascade:likelihood:min,judge")
        for step in answer(pocket, question, look).steps:
            for text, verdict in zip(step.draft_texts, step.verdicts, strict=True):
                if verdict is not None and verdict.earlier and text and step.target_text:
                    found.append((verdict.earlier[0].score, meaning(text) == meaning(step.target_text)))
    likely = [same for score, same in found if score is not None and score >= -3]
    assert len(likely) >= 3
    assert sum(likely) / len(likely) >= 0.9


def test_a_rating_is_asked_for_and_read(pocket: Pocket) -> None:
    trace = answer(pocket, PROBLEMS[0], Lookahead("sync", depth=2, verifier="score:0"))
    asked = trace.of("judge")
    assert asked
    assert {b.generated_tokens for b in asked} == {1}
    for verdict in verdicts(trace, "score"):
        assert verdict.accepted == (verdict.score is not None)
    assert_idle(pocket)


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_fast_acceptance_spares_the_target(pocket: Pocket, schedule: str) -> None:
    written = {}
    for fast in (None, -3.0):
        look = Lookahead(schedule, depth=3, fast_accept=fast)  # type: ignore[arg-type]
        traces = [answer(pocket, question, look) for question in PROBLEMS]
        tokens = sum(b.generated_tokens for t in traces for b in t.of("target"))
        written[fast] = tokens / sum(len(t.ids) for t in traces)
        certain = [s for t in traces for s in t.steps if any(v is not None and v.by == "certain" for v in s.verdicts)]
        assert bool(certain) == (fast is not None)
        assert not certain or any(s.target_text is None for s in certain)
    if schedule == "sync":  # in the other, what is written and thrown away depends on which runtime is late
        assert written[-3.0] < written[None]
    assert_idle(pocket)


def test_a_greedy_draft_is_certain_only_where_the_target_could_have_written_it(pocket: Pocket) -> None:
    """At a threshold of nearly 0 what is accepted fast is what the target writes itself, token for token."""
    for question in PROBLEMS:
        job = AnswerRequest(sampling=Sampling(temperature=0.0), limits=Limits(max_tokens=300), question=question.id)
        autoregressive.run([{"role": "user", "content": question.question}], job, backend=pocket.roles["target"])
        ahead = answer(pocket, question, Lookahead("sync", depth=3, verifier="exact", fast_accept=-0.6), 0.0)
        assert ahead.ids == job.record.ids  # exp(-0.6) > 1/2: no other token can be likelier
    assert_idle(pocket)
