"""The judge verifier when its runtime is down: asked once, then left alone for a while."""

import time
from typing import Any

from lr_sglang import verifiers
from lr_sglang.call import Call
from lr_sglang.config import Lookahead
from lr_sglang.dsl import Inquiry
from lr_sglang.errors import PromptTooLong, RuntimeDown
from lr_sglang.flight import Flight
from lr_sglang.hearing import Hearing
from lr_sglang.job import Job
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps import DELIMITER, Ending, Step
from lr_sglang.tree import Branch, Pair, StepTree, Verdict
from lr_sglang.verifiers.asking import REST, Asking
from lr_sglang.witness import Witness
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
    job = Job(Lookahead(depth=1), verifier=verifiers.make("judge", verifiers.Setup(target.roles, "paper")))
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


def test_what_fails_together_is_one_failure():
    asking, heard, verdicts = Asking("judge"), [], []
    pair = Pair(*(Step("a", (1,), Ending.DELIMITER) for _ in range(2)))

    def begin(hear):
        heard.append(hear)
        return Call()

    inquiry = Inquiry(pair, verdicts.append, begin, lambda ask: None, None)
    for _ in range(6):
        assert asking.ask(inquiry, lambda call: None, lambda generation: Verdict(True, "judge")) is None
    for hear in heard:
        hear(RuntimeDown("it takes no more at the moment", role="judge"))
    assert [verdict.failed for verdict in verdicts] == [True] * 6
    assert 0 < asking._rests_until - time.monotonic() <= REST
    assert asking.ask(inquiry, lambda call: None, lambda generation: Verdict(True, "judge")).failed


def test_a_draft_that_the_target_cannot_read_stays_refused():
    """Whatever the judge says of it afterwards; a second version of the step is still looked at."""

    class Slow:
        name = "slow"

        def verify(self, inquiry):
            return None

    job, tree = Job(Lookahead(width=2), verifier=Slow()), StepTree(2, 2, 1000)
    flight = Flight(job.record)
    hearing = Hearing(
        job, flight, Witness(None, flight.now), lambda role, node, child: Branch(role, node.position), lambda n: None
    )
    unreadable, other = tree.propose(tree.root)
    tree.root.target = Step("a", (1,), Ending.DELIMITER)
    for child in (unreadable, other):
        tree.drafted(child, Step("b", (2,), Ending.DELIMITER))
        hearing.ask(child, tree.pair(child))
    unreadable.verdict = Verdict(False, "draft", "tokens that the target does not know", failed=True)
    hearing.ruled(unreadable.asked, unreadable, Verdict(True, "slow"))
    assert not unreadable.verdict.accepted and tree.decide(tree.root) is None
    hearing.ruled(other.asked, other, Verdict(True, "slow"))
    assert tree.decide(tree.root) is other
