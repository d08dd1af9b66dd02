"""Servers that die in the middle of an answer. These tests end the session's servers, one after another."""

from __future__ import annotations

import os
import signal
import time

import pytest

from lr_sglang import tasks, verifiers
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.errors import RuntimeDown
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps.trace import StepRecord, Trace
from tests.e2e.conftest import Pocket
from tests.e2e.test_pocket import assert_complete

pytestmark = pytest.mark.usefixtures("last_of_pocket")
QUESTION = max(tasks.load("pocket", limit=50), key=lambda q: len(q.question))


def kill(pocket: Pocket, role: str) -> None:
    """As the kernel would: no time to say good-bye."""
    pid = pocket.fleet.servers[role].pid
    assert pid is not None
    os.killpg(os.getpgid(pid), signal.SIGKILL)


def answer(pocket: Pocket, verifier: str, victim: str = "") -> Trace:
    """Kills ``victim`` when the first step is kept."""

    def on_step(step: StepRecord) -> None:
        if victim and step.position == 0:
            kill(pocket, victim)

    judge = verifiers.make(verifier, verifiers.Setup(pocket.roles, "pocket"))
    job = AnswerRequest(Lookahead(verifier=verifier), Sampling(temperature=0.0), Limits(max_tokens=300), judge, "fault")
    job.on_step = on_step
    lookahead.run([{"role": "user", "content": QUESTION.question}], job, backend=pocket.roles["target"])
    return job.record


def plain(pocket: Pocket) -> Trace:
    job = AnswerRequest(sampling=Sampling(temperature=0.0), limits=Limits(max_tokens=300), question="fault")
    autoregressive.run([{"role": "user", "content": QUESTION.question}], job, backend=pocket.roles["target"])
    return job.record


def test_a_judge_that_dies_makes_it_slower_and_never_wrong(pocket: Pocket) -> None:
    assert f"\\boxed{{{QUESTION.answer}}}" in plain(pocket).text
    trace = answer(pocket, "judge", victim="judge")
    assert_complete(trace)
    assert trace.finish == "stop"
    assert f"\\boxed{{{QUESTION.answer}}}" in trace.text
    assert trace.failures["judge"] > 0
    # with no judge only identical drafts are kept, so from there on the words are the target's own
    later = [s for s in trace.steps[2:] if s.source == "draft"]
    assert all(s.text.strip() == (s.target_text or "").strip() for s in later)
    assert "judge" in pocket.fleet.dead()


def test_a_draft_that_dies_makes_it_slower_and_never_wrong(pocket: Pocket) -> None:
    own = plain(pocket)
    trace = answer(pocket, "exact", victim="draft")
    assert_complete(trace)
    assert trace.ids == own.ids
    assert trace.failures["draft"] > 0
    assert "draft" in pocket.fleet.dead()


def test_a_target_that_dies_is_a_named_error_at_once(pocket: Pocket) -> None:
    began = time.monotonic()
    with pytest.raises(RuntimeDown) as caught:
        answer(pocket, "exact", victim="target")
    assert caught.value.role == "target"
    assert time.monotonic() - began < 15
    assert "target" in pocket.fleet.dead()
    assert pocket.fleet.server("target").tail()  # type: ignore[union-attr]
