"""Verifiers that ask the target itself, on three real SGLang servers.

The pocket target knows word problems and nothing else: it cannot rate a step, so of ``score`` only
the mechanics are tested.
"""

from __future__ import annotations

import pytest

from lr_sglang import tasks, verifiers
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps.trace import Trace
from lr_sglang.steps.tree import Verdict
from tests.e2e.conftest import Pocket, full
from tests.e2e.test_pocket import assert_complete, assert_idle
from tools.pocket.meaning import meaning

PROBLEMS = tasks.load("pocket", limit=20 if full else 3)


def answer(
    pocket: Pocket, question: tasks.Question, look: Lookahead, temperature: float = 0.6
) -> Trace:
    job = AnswerRequest(
        look, Sampling(temperature=temperature), Limits(max_tokens=300), question=question.id
    )
    job.verifier = verifiers.make(look.verifier, verifiers.Setup(pocket.roles, "pocket"))
    lookahead.run(
        [{"role": "user", "content": question.question}], job, backend=pocket.roles["target"]
    )
    assert_complete(job.record)
    assert not job.record.failures
    return job.record


def verdicts(trace: Trace, by: str) -> list[Verdict]:
    return [v for step in trace.steps for v in step.verdicts if v is not None and v.by == by]


@pytest.mark.parametrize("how", ["mean", "min"] if full else ["mean"])
def test_the_likelihood_of_a_step_costs_its_prefill_and_generates_nothing(
    pocket: Pocket, how: str
) -> None:
    traces = [
        answer(pocket, q, Lookahead("sync", depth=3, verifier=f"likelihood:{how}"))
        for q in PROBLEMS
    ]
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
                    found.append(
                        (verdict.earlier[0].score, meaning(text) == meaning(step.target_text))
                    )
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
