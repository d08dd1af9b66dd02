"""Properties of every run, over scripted runtimes with random delays, failures and lateness."""

import asyncio
import dataclasses
import itertools
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.algorithm.inquiry import ask
from lr_sglang.config import Limits, Lookahead
from lr_sglang.errors import Cancelled, RuntimeBusy, RuntimeDown, RuntimeRefused, RuntimeTimeout
from lr_sglang.frontend.dsl import run_program
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.programs.rate import OPENING
from lr_sglang.steps.step import Verdict
from lr_sglang.verifiers.exact import Exact
from tests import examples
from tests.accounts import accounts
from tests.scripted import (
    CONVERSATION,
    END,
    VERIFIERS,
    ScriptedTransport,
    Whole,
    answered,
    deployment,
    made,
    reasoner,
    set_facts,
)
from tests.simulated.clock import run_virtually
from tests.simulated.runtime import Fault, Faults

PIECES = ("a", "bc", "d e f", "12", "", "\n", "\n\n", "\n\n\n", "\n\n\n\n")
answers = st.lists(st.sampled_from(PIECES), min_size=1, max_size=12).map(
    lambda parts: "".join(parts) + chr(END)
)


@dataclass(frozen=True)
class Case:
    """One run. ``failing`` is the share of the draft's requests that fail, ``faults`` what else
    goes wrong.
    """

    answer: str
    look: Lookahead
    alpha: float
    seed: int
    failing: float
    pace: tuple[float, float]
    slots: dict[str, int] = field(default_factory=dict)
    faults: dict[str, tuple[Fault, ...]] = field(default_factory=dict)
    budget: int = 100

    @property
    def ids(self) -> tuple[int, ...]:
        """What the target writes by itself."""
        return tuple(map(ord, self.answer))[: self.budget]

    def transports(self) -> dict[str, ScriptedTransport]:
        rng = random.Random(self.seed)

        def seconds(most: float):
            return lambda text: rng.random() * most

        def fail(text: str) -> RuntimeDown | None:
            return RuntimeDown("by chance") if rng.random() < self.failing else None

        target = ScriptedTransport(reasoner(self.seed, 1.0, self.answer), seconds(self.pace[0]))
        draft = Faulty(reasoner(self.seed, self.alpha, self.answer), seconds(self.pace[1]), fail)
        for one in (target, draft):
            one.length_first, one.passes = rng.random() < 0.7, rng.choice((1, 1, 2, 4))
        draft.order(self.faults.get("draft", ()), self.seed)
        return {"target": target, "draft": draft}


class Faulty(ScriptedTransport):
    """Does wrong what it is ordered to, as a simulated runtime does."""

    faults = Faults()

    def order(self, faults: tuple[Fault, ...], seed: int) -> None:
        self.faults = Faults()
        for fault in faults:
            self.faults.order(fault)

    async def generate(self, payload, request, timeout):
        fault = self.faults.next()
        kind = fault.kind if fault else ""
        if self.faults.dead:
            raise RuntimeDown("it has died")
        if kind in ("hang", "late"):
            request.sending(self._abort)
            stopped = self._stopped[request] = asyncio.Event()
            self.running.add(request)
            try:
                async with asyncio.timeout(HANGS if kind == "hang" else fault.seconds):
                    await stopped.wait()
            except TimeoutError:
                pass
            finally:
                self.running.discard(request)
                del self._stopped[request]
        if kind == "hang":
            request.end()
            raise Cancelled("cancelled") if request.cancelled else RuntimeTimeout("no answer")
        if kind in ("fail", "busy"):
            raise (RuntimeRefused if kind == "fail" else RuntimeBusy)("a fault was ordered")
        reply = await super().generate(payload, request, timeout)
        return {"text": "garbage"} if kind == "garbage" else reply


HANGS = 0.05  # seconds until a request that hangs is given up


looks = st.builds(
    Lookahead,
    schedule=st.sampled_from(("async", "sync")),
    depth=st.integers(1, 6),
    width=st.integers(1, 3),
    max_step_tokens=st.sampled_from((1, 2, 3, 5, 50)),
    half_sentence_guard=st.booleans(),
    gate=st.sampled_from((0.0, 0.0, 0.2, 0.9)),
    policy=st.sampled_from(("fixed", "fixed", "adaptive")),
).filter(lambda look: look.width**look.depth <= (64 if look.schedule == "async" else 9))
paces = st.sampled_from(((0.0, 0.0), (0.004, 0.001), (0.001, 0.004), (0.002, 0.002)))
cases = st.builds(
    Case,
    answer=answers,
    look=looks,
    alpha=st.sampled_from((0.0, 0.5, 0.9, 1.0)),
    seed=st.integers(0, 2**16),
    failing=st.sampled_from((0.0, 0.0, 0.3)),
    pace=paces,
    slots=st.sampled_from(
        ({}, {}, {"target": 1, "draft": 1}, {"target": 2}, {"draft": 2, "target": 4})
    ),
    budget=st.sampled_from((100, 100, 7)),
)
orders = st.lists(
    st.builds(
        Fault,
        st.sampled_from(("late", "fail", "busy", "hang", "die", "garbage")),
        share=st.sampled_from((0.3, 1.0)),
        times=st.sampled_from((None, 1, 3)),
        after=st.integers(0, 5),
        seconds=st.just(0.004),
    ),
    max_size=2,
).map(tuple)
# No shrinking: a failure here is often a hang, or rare.
quietly = settings(
    phases=(Phase.explicit, Phase.generate),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


@pytest.fixture(autouse=True, scope="module")
def no_rest():
    """A draft or a judge that failed is tried again at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lr_sglang.algorithm.answer_request.BACKOFF_SECONDS", 0.0)
        patch.setattr("lr_sglang.verifiers.asking.BACKOFF", 0.0)
        yield


def run(
    case: Case, verifier, transports=None, late=None
) -> tuple[AnswerRequest, dict[str, ScriptedTransport]]:
    transports = transports or case.transports()
    backend = deployment(**transports)
    if "judge" in transports:
        backend.roles["judge"].tokenizer = Whole()
    for role, slots in case.slots.items():
        set_facts(backend.roles[role], max_running_requests=slots)
    request = AnswerRequest(case.look, limits=Limits(max_tokens=case.budget), verifier=verifier)
    if isinstance(verifier, str):
        request.verifier = made(verifier, backend.roles)
    if late is not None:
        request.verifier = Late(request.verifier, *late, case.seed)
    sent_at_the_end = []

    def on_step(step):
        if step.ending == "end of sequence":
            sent_at_the_end.append(
                {role: len(transport.requests) for role, transport in transports.items()}
            )

    request.on_step = on_step
    with accounts() as told:
        answered(backend, request, virtually=True)
    told.check()
    check(request, transports, case.slots, sent_at_the_end)
    return request, transports


def check(
    request: AnswerRequest,
    transports: dict[str, ScriptedTransport],
    slots: dict[str, int],
    sent: list[dict[str, int]],
) -> None:
    """What holds for every run."""
    record = request.trace
    for role, transport in transports.items():
        assert not transport.running, f"a {role} branch outlives the run"
        assert transport.most <= slots.get(role, 10**6), role
        assert len(transport.requests) <= len(record.of(role)) + len(record.of("judge")) * (
            role == "target"
        )
        assert not sent or len(transport.requests) == sent[0][role], (
            "something was sent after the end"
        )
    for branch in record.branches:
        assert branch.outcome is not None
        assert branch.ended is not None and branch.ended >= branch.started
        assert branch.result is None and branch.shareable is None
        # steps in one generation
        alone = branch.role == "target" and request.lookahead.policy == "adaptive"
        assert (
            branch.role == "judge"
            or alone
            or branch.generated_tokens <= request.lookahead.max_step_tokens
        )
    check_text(request)
    check_tokens(request)


def check_text(request: AnswerRequest) -> None:
    """The answer is a sequence of accepted draft steps and target steps, in order."""
    record, guard, before = (
        request.trace,
        request.lookahead.half_sentence_guard and not request.exact,
        "",
    )
    assert "".join(s.text for s in record.steps) == record.text
    assert sum(s.tokens for s in record.steps) == len(record.ids)
    assert record.finish == ("stop" if record.ids[-1] == END else "length")
    assert len(record.ids) == request.limits.max_tokens or record.finish == "stop"
    assert len(record.ids) <= request.limits.max_tokens
    for position, step in enumerate(record.steps):
        assert step.position == position
        alone = step.outcome == "bonus" and request.lookahead.policy == "adaptive"
        assert alone or step.tokens <= request.lookahead.max_step_tokens
        assert not (guard and before == "token cap" and step.source == "draft"), (
            "the half-sentence guard"
        )
        before = step.ending
        if step.source == "draft":
            assert step.outcome == "accepted"
            certain = any(v is not None and v.by == "certain" for v in step.verdicts)
            assert not certain or step.ending != "token cap"
            assert any(
                v is not None and v.accepted and text == step.text
                for v, text in zip(step.verdicts, step.draft_texts, strict=True)
            )
        else:
            assert step.outcome in ("corrected", "bonus")
            assert step.text == step.target_text
            assert all(v is not None and not v.accepted for v in step.verdicts)
    assert all(s.ending != "end of sequence" for s in record.steps[:-1])


def check_tokens(request: AnswerRequest) -> None:
    record = request.trace
    counts = record.tokens()
    assert counts["used"] == len(record.ids)
    assert counts["used"] + counts["wasted"] == counts["generated"]
    assert counts["wasted"] >= 0
    outcomes = record.outcomes()
    accepted = sum(s.source == "draft" for s in record.steps)
    assert outcomes["draft"]["accepted"] == accepted
    branches = outcomes["target"]["corrected"] + outcomes["target"]["bonus"]
    own = len(record.steps) - accepted
    assert branches == own or (request.lookahead.policy == "adaptive" and branches < own), (
        "steps in one generation"
    )


# A scripted target finds likely what it would write itself, and nothing else: these change no
# answer.
LOSSLESS = ("exact", "likelihood:min:-1", "cascade:likelihood:min:-1,exact")


class Late:
    """Another verifier, whose verdicts come later, or fail."""

    name = "late"

    def __init__(self, verifier, most: float, failing: float, seed: int) -> None:
        self.verifier, self.most, self.failing, self.rng = (
            verifier,
            most,
            failing,
            random.Random(seed),
        )

    def verify(self, inquiry):
        async def later():
            verdict = await ask(self.verifier, inquiry)
            await asyncio.sleep(self.rng.random() * self.most)
            return (
                Verdict(False, self.name, failed=True)
                if self.rng.random() < self.failing
                else verdict
            )

        return later()


def with_everything(case: Case, verifier: str, late: tuple[float, float] | None) -> AnswerRequest:
    rng = random.Random(case.seed)

    def by_chance(*_):
        return RuntimeDown("by chance") if rng.random() < case.failing else None

    rated = lambda text, _: str(len(text) % 10) if text == OPENING else writer(text, _)
    transports = case.transports()
    target, writer = transports["target"], transports["target"].write
    target.write, target.fail_to_weigh = rated, by_chance
    judge = Faulty(lambda text, _: rng.choice("AU"), target.seconds, by_chance)
    judge.order(case.faults.get("judge", ()), case.seed)
    request, _ = run(case, verifier, {**transports, "judge": judge}, late)
    return request


@pytest.mark.parametrize("verifier", VERIFIERS)
@settings(quietly, max_examples=examples(20))
@given(
    cases,
    st.sampled_from((None, (0.001, 0.0), (0.005, 0.2))),
    st.fixed_dictionaries({"draft": orders, "judge": orders}),
)
def test_with_every_verifier_whatever_goes_wrong(verifier, case, late, faults):
    """Late, failing, hanging, dying and raving drafts and judges; late verdicts."""
    case = dataclasses.replace(case, faults=faults)
    request = with_everything(case, verifier, late)
    if verifier in LOSSLESS:
        assert request.trace.ids == case.ids
    for role in ("target", "draft"):
        drawn = [b.seed for b in request.trace.of(role)]
        assert request.exact or len(set(drawn)) == len(drawn), (
            "no two branches of an answer draw with the same seed"
        )
        assert at_once(request.trace.of(role)) <= policy.in_flight(case.look, role)


@settings(quietly, max_examples=examples(100))
@given(cases)
def test_with_the_exact_verifier_the_answer_is_the_targets_own(case):
    request, _ = run(case, Exact())
    assert request.trace.ids == case.ids
    assert request.trace.text == case.answer[:-1][: case.budget]


def at_once(branches) -> int:
    """The most branches at a time of those that were needed to their end: others may have been
    leaving.
    """
    wanted = [b for b in branches if str(b.outcome) in ("accepted", "corrected", "bonus")]
    events = sorted([(b.started, 1) for b in wanted] + [(b.ended, -1) for b in wanted])
    return max(itertools.accumulate(change for _, change in events), default=0)


@settings(quietly, max_examples=examples(20))
@given(
    st.integers(1, 6),
    st.sampled_from(("async", "sync")),
    st.integers(0, 99),
    paces,
    st.sampled_from((0.6, 1.0)),
)
def test_the_target_is_never_asked_for_more_at_once_than_the_depth_allows(
    depth, schedule, seed, pace, alpha
):
    answer = "".join(f"{n}\n\n" for n in range(12)) + chr(END)
    case = Case(answer, Lookahead(schedule, depth), alpha, seed, 0.0, pace)
    _, transports = run(case, Exact())
    assert transports["target"].most <= depth + (schedule == "sync")
    assert transports["draft"].most <= 1


@settings(quietly, max_examples=examples(20))
@given(cases, st.sampled_from((0.0, 0.0005, 0.003, 0.02)))
def test_a_stopped_answer_leaves_nothing_running(case, after):
    """Also when it is stopped within a millisecond of its start."""
    # nobody waits for its requests
    slow = Case(case.answer, case.look, case.alpha, case.seed, 0.0, (3600.0, 3600.0))
    transports = slow.transports()
    request = AnswerRequest(case.look, verifier=Exact())

    async def main():
        loop = asyncio.get_running_loop()
        loop.call_later(after, request.stop)
        with pytest.raises(Cancelled):
            await run_program(lookahead, CONVERSATION, request, backend=deployment(**transports))
        assert loop.time() <= after + 0.001

    with accounts() as told:
        run_virtually(main())
    told.check()
    assert not transports["target"].running | transports["draft"].running
    assert all(b.outcome is not None for b in request.trace.branches)
