"""The judge verifier when its runtime is down: asked once, then left alone for a while."""

import asyncio
from typing import Any

import pytest
from sglang.lang.interpreter import ProgramState
from sglang.lang.ir import SglSamplingParams

from lr_sglang import verifiers
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.branches import Branches
from lr_sglang.algorithm.inquiry import Inquiry
from lr_sglang.algorithm.verification import Verification
from lr_sglang.config import Lookahead
from lr_sglang.engine.request import Request
from lr_sglang.errors import PromptTooLong, RuntimeDown
from lr_sglang.frontend.executor import Executor
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps.events import EventEmitter
from lr_sglang.steps.step import DELIMITER, Ending, Step
from lr_sglang.steps.tree import Pair, StepTree, Verdict
from lr_sglang.verifiers.asking import REST
from tests import run_by
from tests.scripted import END, ScriptedTransport, deployment
from tests.simulated.clock import run_virtually

STEPS = 6


def writer(words: str):
    def write(text: str, sampling: dict[str, Any]) -> str:
        written = text.count(DELIMITER)
        return f"{words} {written}" + (DELIMITER if written < STEPS - 1 else chr(END))

    return write


def solve(error) -> tuple[AnswerRequest, ScriptedTransport]:
    judge = ScriptedTransport(lambda text, sampling: "aligned", fail=lambda text: error)
    target = deployment(
        target=ScriptedTransport(writer("target"), lambda text: 0.05),
        draft=ScriptedTransport(writer("draft")),
        judge=judge,
    )
    job = AnswerRequest(
        Lookahead(depth=1), verifier=verifiers.make("judge", verifiers.Setup(target.roles, "paper"))
    )
    lookahead.run([{"role": "user", "content": "q"}], job, backend=target)
    return job, judge


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (RuntimeDown("it died", role="judge"), 1),  # not asked at every step
        (PromptTooLong("too long", role="judge"), STEPS),  # asked about the next pair
    ],
)
def test_a_judge_that_fails_is_left_alone_or_asked_about_the_next_pair(error, asked):
    job, judge = solve(error)
    assert job.record.text == DELIMITER.join(f"target {n}" for n in range(STEPS))
    assert len(judge.requests) == job.record.failures["judge"] == asked
    assert job.record.alpha is None, "nothing was judged"


def test_what_fails_together_is_one_failure():
    judge = ScriptedTransport(
        lambda text, sampling: "aligned",
        lambda text: 0.01,
        fail=lambda text: RuntimeDown("it takes no more at the moment", role="judge"),
    )
    backend = deployment(target=ScriptedTransport(writer("target")), judge=judge)
    verifier = verifiers.make("judge", verifiers.Setup(backend.roles, "paper"))

    async def main():
        for one in backend.roles.values():
            one.bind(asyncio.get_running_loop())
        s = ProgramState(Executor(backend, {}, SglSamplingParams(), None, False))
        pair = Pair(*(Step(text, (1,), Ending.DELIMITER) for text in "ab"))

        def track(inquiry, state):
            state.stream_executor.request = request = Request()
            return request

        verdicts = await asyncio.gather(
            *(verifier.verify(Inquiry(pair, s, track)) for _ in range(6))
        )
        rests = verifier._rests_until - asyncio.get_running_loop().time()
        return verdicts, rests, verifier.verify(Inquiry(pair, s, track))

    verdicts, rests, later = run_virtually(main())
    assert [verdict.failed for verdict in verdicts] == [True] * 6
    assert 0 < rests <= REST
    assert later.failed and len(judge.requests) == 6


@run_by(run_virtually)
async def test_a_draft_that_the_target_cannot_read_stays_refused():
    """Whatever the judge says of it afterwards; a second version of the step is still looked at."""

    class Slow:
        name = "slow"

        def verify(self, inquiry):
            return None

    job, tree = AnswerRequest(Lookahead(width=2), verifier=Slow()), StepTree(2, 2, 1000)
    backend = deployment(target=ScriptedTransport(writer("target")))
    for one in backend.roles.values():
        one.bind(asyncio.get_running_loop())
    tree.root.state = ProgramState(Executor(backend, {}, SglSamplingParams(), None, False))
    branches = Branches(job.record, asyncio.get_running_loop())
    emitter = EventEmitter(None, branches.now)
    verification = Verification(job, branches, emitter, None)  # Slow asks no runtime
    unreadable, other = tree.add_children(tree.root)
    tree.root.target = Step("a", (1,), Ending.DELIMITER)
    for child in (unreadable, other):
        tree.drafted(child, Step("b", (2,), Ending.DELIMITER))
        verification.ask_verifier(child, tree.pair(child))
    unreadable.verdict = Verdict(
        False, "draft", "tokens that the target does not know", failed=True
    )
    verification.enter(unreadable.asked, Verdict(True, "slow"))
    assert not unreadable.verdict.accepted and tree.decide(tree.root) is None
    verification.enter(other.asked, Verdict(True, "slow"))
    assert tree.decide(tree.root) is other
    await branches.drain()
