"""The judge verifier when its runtime is down: asked once, then left alone for a while."""

from typing import Any

from lr_sglang import verifiers
from lr_sglang.config import Lookahead
from lr_sglang.errors import PromptTooLong, RuntimeDown
from lr_sglang.job import Job
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps import DELIMITER
from tests.scripted import END, ScriptedTransport, deployment

STEPS = 6


def writer(words: str):
    def write(text: str, sampling: dict[str, Any]) -> str:
        written = text.count(DELIMITER)
        return f"{words} {written}" + (DELIMITER if written < STEPS - 1 else chr(END))

    return write


def solve(error) -> tuple[Job, ScriptedTransport]:
    judge = ScriptedTransport(lambda text, sampling: "aligned", fail=lambda text: error)
    target = deployment(
        target=ScriptedTransport(writer("target"), lambda text: 0.05),
        draft=ScriptedTransport(writer("draft")),
        judge=judge,
    )
    job = Job(Lookahead(depth=1), verifier=verifiers.make("judge", target.roles))
    lookahead.run([{"role": "user", "content": "q"}], job, backend=target)
    return job, judge


def test_a_judge_that_is_down_is_not_asked_at_every_step():
    job, judge = solve(RuntimeDown("it died", role="judge"))
    assert job.record.text == DELIMITER.join(f"target {n}" for n in range(STEPS))
    assert len(judge.requests) == 1
    assert job.record.failures["judge"] == 1
    assert job.record.alpha is None  # nothing was judged


def test_a_judge_that_refuses_one_pair_is_asked_about_the_next():
    job, judge = solve(PromptTooLong("too long", role="judge"))
    assert job.record.text == DELIMITER.join(f"target {n}" for n in range(STEPS))
    assert len(judge.requests) == job.record.failures["judge"] == STEPS
