"""Token layer `fed`: a server verifies the lines that it is given, and its text stays the same;
answers that are fed by a draft are plain decoding's.
"""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from lr_sglang import tasks
from lr_sglang.algorithm.answer_request import AnswerRequest, Constraints
from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
from lr_sglang.config import Limits, Runtime, Sampling, TokenLayer
from lr_sglang.engine.loop import call
from lr_sglang.engine.server_facts import scheduler_state
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.frontend.dsl import run_program
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.runtimes import launch, load_deployment
from lr_sglang.runtimes.connect import connected
from lr_sglang.runtimes.launching.server import Server
from lr_sglang.sglang_api.plugin_protocol import FED_FIELD, ROUTE, Delivery
from lr_sglang.steps.branch import Request
from lr_sglang.steps.trace import StepRecord, Trace
from lr_sglang.tasks.question import Work
from lr_sglang.tasks.task import messages
from lr_sglang.verifiers.exact import Exact
from tests import FULL, examples, plan
from tests.e2e.conftest import Pocket, assert_complete, assert_idle

PROBLEMS = tasks.load("pocket", limit=20 if FULL else 3)
PROBLEM = PROBLEMS[0]
TOKENS = 12
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.6, "top_p": 0.95, "sampling_seed": 3}


@dataclass
class Pair:
    """A target with the layer, and its draft."""

    roles: dict[str, RuntimeBackend]
    target: Server
    draft: Server


@pytest.fixture(scope="module", params=["pocket:target", *["pocket:target-hybrid"] * FULL])
def pair(
    request: pytest.FixtureRequest, pocket: Pocket, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """The draft is the session's; in the full run one of its own, which may be killed."""
    deployment = load_deployment("pocket")
    runtime = deployment.runtimes["target"].replace(
        model=request.param, token_layer=TokenLayer("fed", tokens=TOKENS), max_running_requests=8
    )
    shared = Runtime(url=pocket.fleet.urls["draft"])
    runtimes = {"target": runtime, "draft": deployment.runtimes["draft"] if FULL else shared}
    made = deployment.replace(runtimes=runtimes, shared={})
    with launch(made, tmp_path_factory.mktemp("logs"), timeout=280) as fleet:
        draft = fleet.server("draft") or pocket.fleet.server("draft")
        target = fleet.server("target")
        assert draft is not None and target is not None
        with connected(fleet) as roles:
            yield Pair(roles, target, draft)


@pytest.fixture
def roles(pair: Pair) -> dict[str, RuntimeBackend]:
    return pair.roles


@pytest.fixture
def target(roles: dict[str, RuntimeBackend]) -> RuntimeBackend:
    return roles["target"]


def state(target: RuntimeBackend) -> dict[str, Any]:
    return scheduler_state(call(target.transport.get("/server_info"), target.loop))[FED_FIELD]


def written(
    target: RuntimeBackend, sampling: dict[str, Any], line: list[int], way: str
) -> tuple[list[int], int]:
    """The tokens of an answer, and the number of verifications that gave them."""
    chance = random.Random(6)
    params = {"max_new_tokens": 160, **sampling}
    turn = {"role": "user", "content": PROBLEM.question}
    prompt = list(target.tokenizer.chat([turn], True).ids)
    payload = {"input_ids": prompt, "sampling_params": params, "stream": True}

    async def one() -> dict[str, Any]:
        request, told = Request(), 0

        def follow(ids: list[int]) -> None:
            nonlocal told
            if way == "attacked":
                place = chance.choice([len(ids), len(ids) + 1, 0, chance.randrange(200), 2**31 - 1])
                wrong = [chance.randrange(300) for _ in range(chance.randrange(20))]
                sent = [*line[place : place + chance.randrange(9)], *wrong]
                rid = chance.choice([request.rid, request.rid, request.rid[:-1]])
                attack = [Delivery(rid, place, sent)]
                deliveries.append(asyncio.ensure_future(target.transport.deliver(attack)))
            if way == "behind it":  # portions of 16, ahead of what is written
                while told < min(len(ids) + 16, len(line)):
                    portion = Delivery(request.rid, told, line[told : told + 16])
                    told += 16
                    deliveries.append(asyncio.ensure_future(target.transport.deliver([portion])))

        deliveries: list[Any] = []
        request.on_tokens, request.increments = follow, target.facts.increments
        reply = await target.transport.generate(payload, request, 60)
        assert not any([await one for one in deliveries])
        return reply

    target.flush_cache()
    reply = call(one(), target.loop)
    return reply["output_ids"], reply["meta_info"]["spec_verify_ct"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_line_gives_the_same_text_in_fewer_verifications(
    target: RuntimeBackend, sampling: dict[str, Any]
) -> None:
    before = state(target)
    plain, passes = written(target, sampling, [], "without")
    assert len(plain) > 30
    fewer = passes
    tries = 20  # a line comes late, and counts not, while this process does not get to run
    while fewer > passes / 3 and tries:
        ids, fewer = written(target, sampling, plain, "behind it")
        assert ids == plain
        tries -= 1
    assert fewer <= passes / 3
    wrong = [*plain[:20], *(token + 1 for token in plain[20:])]
    assert written(target, sampling, wrong, "behind it")[0] == plain
    after = state(target)
    assert after["failures"] == 0 and after["fed"] > before["fed"]
    assert after["messages"] > before["messages"]


def test_a_target_says_that_it_takes_lines(target: RuntimeBackend) -> None:
    fed = target.facts.fed
    assert fed is not None
    assert (fed.width, fed.draws) == (TOKENS + 1, "seeds")
    assert target.facts.seeded


def test_lines_that_are_wrong_disturb_nothing(target: RuntimeBackend) -> None:
    many = [Delivery("nobody", 7, [1, 2]), Delivery("", 0, [1]), Delivery("beyond", 0, [10**9])]
    refused = call(target.transport.deliver(many), target.loop)
    assert [rid for rid, _ in refused] == ["", "beyond"]
    plain, _ = written(target, GREEDY, [], "without")
    assert state(target)["failures"] == 0
    for body in ({}, {"lines": [["x", 0]]}, {"lines": [["x", 0, [True]]]}):
        with pytest.raises(Exception, match=ROUTE):
            call(target.transport.post(ROUTE, body), target.loop)
    assert written(target, GREEDY, [], "without")[0] == plain


@pytest.mark.timeout(300)
def test_lines_that_others_send_for_the_same_request_change_no_token(
    target: RuntimeBackend,
) -> None:
    """Right and wrong ones at right and wrong places, by who knows its id."""
    plain, _ = written(target, SAMPLED, [], "without")
    before = state(target)
    assert written(target, SAMPLED, plain, "attacked")[0] == plain
    after = state(target)
    assert after["failures"] == before["failures"]
    assert after["messages"] > before["messages"] + 5


def test_an_emptied_cache_has_no_lines(target: RuntimeBackend) -> None:
    call(target.transport.deliver([Delivery("someone", 0, [1, 2, 3])]), target.loop)
    assert state(target)["lines"] > 0
    target.flush_cache()
    assert state(target)["lines"] == 0


def answers(
    roles: dict[str, RuntimeBackend], mode: str, sampling: Sampling, work: list[Work] | None = None
) -> list[dict[str, Any]]:
    """The records of the problems, eight at once."""
    settings = Plan().with_settings(sampling=sampling, limits=Limits(max_tokens=200))
    made = Runner(roles, settings, 8).run(work or plan(PROBLEMS, [mode], samples=2))
    return sorted(made, key=lambda one: (one["question_id"], one["sample"]))


SAMPLINGS = [Sampling(temperature=t, top_p=0.95, seed=3) for t in (0.0, 0.6, 1.0)]
SAMPLINGS.append(Sampling(temperature=0.8, top_p=1.0, top_k=20, min_p=0.1, seed=3))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda one: f"T={one.temperature}")
def test_answers_that_a_draft_feeds_are_plain_decodings_in_one_request_each(
    roles: dict[str, RuntimeBackend], pocket: Pocket, sampling: Sampling
) -> None:
    # Else the target guesses these texts itself, and has written them before a draft comes.
    roles["target"].flush_cache()
    fed = answers(roles, "lossless", sampling)
    assert [(one["error"], one["not_fed"]) for one in fed] == [(None, "")] * len(fed)
    assert all(one["tokens"]["target"]["calls"] == 1 for one in fed)
    assert sum(one["agreed_tokens"] for one in fed) > 0
    assert_idle(roles)
    if plain_roles(roles, pocket) is pocket.roles:
        plain = answers(pocket.roles, "autoregressive", sampling)
        assert [one["ids_digest"] for one in fed] == [one["ids_digest"] for one in plain]


def plain_roles(roles: dict[str, RuntimeBackend], pocket: Pocket) -> dict[str, RuntimeBackend]:
    """A server of the same model that has no token layer; of the hybrid there is none, and the
    fed one writes by guesses of SGLang's own, as test_hybrid.py has them.
    """
    models = {one["target"].facts.infos[0]["model_path"] for one in (roles, pocket.roles)}
    return pocket.roles if len(models) == 1 else roles


def traces(
    target: RuntimeBackend, program: Any, jobs: Sequence[AnswerRequest], question: str
) -> list[Trace]:
    """Answers to one question, at once."""

    async def run() -> None:
        made = (run_program(program, messages(question), job, backend=target) for job in jobs)
        await asyncio.gather(*made)

    call(run(), target.loop)
    return [job.trace for job in jobs]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("temperature", [0.6, *[0.0, 1.0] * FULL])
def test_fed_answers_end_at_every_token_budget_as_plain_ones(
    roles: dict[str, RuntimeBackend], pocket: Pocket, temperature: float
) -> None:
    sampling = Sampling(temperature=temperature, top_p=0.95, seed=5)
    alone = AnswerRequest(sampling=sampling, limits=Limits(max_tokens=40))
    plain_target = plain_roles(roles, pocket)["target"]
    (plain,) = traces(plain_target, autoregressive, [alone], PROBLEM.question)
    jobs = [
        AnswerRequest(sampling=sampling, limits=Limits(max_tokens=n), verifier=Exact())
        for n in range(1, 41)
    ]
    for most, fed in enumerate(traces(roles["target"], lookahead, jobs, PROBLEM.question), 1):
        assert fed.ids == plain.ids[:most], most
        assert fed.finish == ("length" if most < len(plain.ids) else plain.finish)
        assert_complete(fed)
    assert_idle(roles)


@pytest.mark.timeout(600)
def test_of_answers_that_are_hung_up_on_or_aborted_nothing_is_left_on_the_servers(
    roles: dict[str, RuntimeBackend], pocket: Pocket
) -> None:
    """The others are plain decoding's."""
    count, chance = examples(20), random.Random(8)
    limits = Limits(max_tokens=120)
    samplings = [Sampling(temperature=0.6, top_p=0.95, seed=seed) for seed in range(count)]
    alone = [AnswerRequest(sampling=one, limits=limits) for one in samplings]
    plain = traces(plain_roles(roles, pocket)["target"], autoregressive, alone, PROBLEM.question)
    jobs = [AnswerRequest(sampling=one, limits=limits, verifier=Exact()) for one in samplings]
    target = roles["target"]
    fates = [("stopped", "aborted", "", "", "")[number % 5] for number in range(count)]

    async def made(job: AnswerRequest, fate: str) -> str:
        left = chance.randrange(1, 4)  # steps

        def strike(step: StepRecord) -> None:
            nonlocal left
            left -= 1
            if not left and fate == "stopped":
                job.stop()
            elif not left and fate == "aborted":
                client = target.transport.servers()[0]
                client.start(client.post_abort(job.trace.of("target")[0].rid))

        job.on_step = strike
        try:
            await run_program(lookahead, messages(PROBLEM.question), job, backend=target)
        except LookaheadError as error:
            return type(error).__name__
        return ""

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*map(made, jobs, fates))

    ends = call(all_of_them(), target.loop)
    assert_idle(roles, 15.0)
    for fate, end, job, one in zip(fates, ends, jobs, plain, strict=True):
        assert job.trace.ids == one.ids[: len(job.trace.ids)]
        if end:
            assert fate, end
        else:  # one may have ended before it was struck
            assert (job.trace.ids, job.trace.finish) == (one.ids, one.finish)
    assert len(set(ends)) == 3, ends
    written(target, GREEDY, [], "without")  # a pass, which forgets the lines of those that ended
    told = state(target)
    assert told["failures"] == 0 and told["lines"] <= count
    assert not target.lines._waiting


def signalled(server: Server, number: signal.Signals) -> None:
    """Sends a signal to all processes of a server, but to its guardian, which ends it with the test."""
    assert server.pid is not None
    for guardian in psutil.Process(server.pid).children():
        for process in guardian.children(recursive=True):
            process.send_signal(number)


@contextmanager
def slowed(server: Server, until: Callable[[], bool]) -> Iterator[None]:
    """Lets a server run for some milliseconds in each fifth of a second until something has
    happened, which so has its time however fast or busy the machine is.
    """
    left = threading.Event()

    def pulses() -> None:
        while not (left.is_set() or until()):
            signalled(server, signal.SIGSTOP)
            time.sleep(0.2)
            signalled(server, signal.SIGCONT)
            time.sleep(0.005)

    thread = threading.Thread(target=pulses)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGSTOP, *[signal.SIGKILL] * FULL], ids=str)
def test_a_draft_that_hangs_or_dies_in_the_middle_costs_speed_only_and_is_told(
    pair: Pair, pocket: Pocket, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """The last of the module: a draft that was killed stays dead."""
    monkeypatch.setattr("lr_sglang.algorithm.reader.DRAFT_SECONDS", 1.0)
    monkeypatch.setattr("lr_sglang.algorithm.answer_request.BACKOFF_SECONDS", 0.1)
    target = pair.roles["target"]
    common: dict[str, Any] = {
        "sampling": Sampling(temperature=0.6, top_p=0.95, seed=5),
        "limits": Limits(max_tokens=400),
        "constraints": Constraints(ignore_eos=True),
    }
    plain_target = plain_roles(pair.roles, pocket)["target"]
    (plain,) = traces(plain_target, autoregressive, [AnswerRequest(**common)], PROBLEM.question)
    struck = threading.Event()

    def strike(step: StepRecord) -> None:
        if request.trace.agreed_tokens and not struck.is_set():
            struck.set()
            signalled(pair.draft, number)

    request = AnswerRequest(**common, verifier=Exact(), on_step=strike)
    target.flush_cache()
    try:
        with slowed(pair.target, lambda: request.trace.failures["draft"] > 0):
            (fed,) = traces(target, lookahead, [request], PROBLEM.question)
    finally:
        if number == signal.SIGSTOP:
            signalled(pair.draft, signal.SIGCONT)
    assert fed.ids == plain.ids and fed.agreed_tokens > 0
    assert_complete(fed)
    drafts = [(one.outcome, one.generated_tokens, one.ended, one.error) for one in fed.of("draft")]
    assert fed.failures["draft"] > 0 and fed.causes["draft"], (drafts, fed.seconds)
    assert len(fed.of("target")) == 1 and fed.lossless == "text"
    assert state(target)["failures"] == 0
    if number == signal.SIGSTOP:
        assert_idle(pair.roles, 15.0)
        again = AnswerRequest(**common, verifier=Exact())
        target.flush_cache()
        with slowed(pair.target, lambda: again.trace.agreed_tokens > 0):
            (fed,) = traces(target, lookahead, [again], PROBLEM.question)
        assert fed.ids == plain.ids and fed.agreed_tokens > 0 and not fed.failures
