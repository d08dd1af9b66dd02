"""Exact answers of a target that is fed: one request, whose passes verify what the draft has
delivered. Runtimes have probabilities and take time, on the virtual clock.
"""

import asyncio
import copy
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import pytest

from lr_sglang.algorithm.answer_request import AnswerRequest, Constraints
from lr_sglang.algorithm.policy import RunStatistics
from lr_sglang.algorithm.reader import DRAFT_SECONDS
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.server_facts import FedLayer
from lr_sglang.errors import Cancelled, RuntimeDown, RuntimeTimeout
from lr_sglang.frontend.dsl import run_program
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.sglang_api.plugin_protocol import LEFT_OUT, RELAXED, common_prefix
from lr_sglang.steps.branch import Request
from lr_sglang.tasks.task import messages
from lr_sglang.verifiers.exact import Exact
from tests import examples
from tests.dice import Dice
from tests.scripted import CONVERSATION, deployment, set_facts
from tests.simulated.clock import run_virtually
from tests.simulated.runs import pair
from tests.simulated.scheduled import scheduled_roles
from tests.simulated.scheduler import Flags
from tests.simulated.times import Times
from tests.simulated.virtual import questions

WIDTH = 8


class Running(Dice):
    """A model that generates in passes of some seconds each, and streams; aborts end it.

    Args:
        seconds: of a pass, and of a prefill.
        width: of a verification, which takes its guesses from delivered lines; 1: a token a pass.
        loses: messages that get lost, by number.
        fails_at, hangs_at: the number of the request that fails, or hangs, with all after it.
        breaks: of so many requests the connection breaks, and they are sent again.
    """

    def __init__(
        self,
        model: int,
        noise: float = 0.0,
        seconds: float = 0.02,
        width: int = 1,
        loses: frozenset[int] = frozenset(),
        fails_at: int = 10**6,
        hangs_at: int = 10**6,
        increments: bool = True,
        breaks: int = 0,
    ) -> None:
        super().__init__(model, noise)
        self.pass_seconds, self.width, self.loses = seconds, width, loses
        self.fails_at, self.hangs_at, self.increments = fails_at, hangs_at, increments
        self.breaks = breaks
        self.lines: dict[str, tuple[int, list[int]]] = {}
        self.live: dict[str, asyncio.Event] = {}
        self.delivered: list[list[Any]] = []
        self.passes = self.began = self.generated = 0
        self.delay = 0.003
        self.vocabulary = ""  # its own, if it is another
        self.hears_late = False  # whether an aborted request has an event more
        self.beside: Running | None = None  # its passes slow this one's

    async def deliver(self, parts: list[Any]) -> None:
        self.delivered.append(parts)
        await asyncio.sleep(self.delay)
        if len(self.delivered) - 1 in self.loses:
            return
        for rid, place, ids in parts:
            first, before = self.lines.get(rid, (place, []))
            if not first <= place <= first + len(before):
                first, before = place, []
            self.lines[rid] = first, before[: place - first] + ids

    def _guess(self, rid: str, written: list[int]) -> list[int]:
        first, line = self.lines.get(rid, (0, []))
        done = written[first:]
        if first > len(written) or line[: len(done)] != done:
            self.lines.pop(rid, None)
            return []
        return line[len(done) : len(done) + self.width - 1]

    async def generate(self, payload: Any, request: Any, timeout: float) -> dict[str, Any]:
        number = self.began
        self.began += 1
        abort = lambda one: self.live[one.rid].set()
        rid = request.sending(abort)
        if number < self.breaks:
            await asyncio.sleep(0.05)  # meanwhile it gets a line
            rid = request.sending(abort)
        self.live[rid] = aborted = asyncio.Event()
        try:
            if number >= self.fails_at:
                raise RuntimeDown("gone", role="draft")
            if number >= self.hangs_at:
                try:
                    async with asyncio.timeout(timeout):
                        await aborted.wait()
                except TimeoutError:
                    raise RuntimeTimeout(f"no answer in {timeout:g} s", role="draft") from None
            reply = await super().generate(payload, Request(), timeout)
            whole, written = reply["output_ids"], list[int]()
            others = 0
            await asyncio.sleep(self.pass_seconds)
            while len(written) < len(whole) and not aborted.is_set():
                guess = self._guess(rid, written)
                rest = whole[len(written) :]
                taken = common_prefix(guess, rest)
                written += rest[: taken + 1] if written else rest[:1]  # the prefill gives one
                self.passes += 1
                if len(written) < len(whole):
                    if self.beside is not None and self.beside.passes > others:
                        others = self.beside.passes
                        await asyncio.sleep(self.pass_seconds)
                    if request.on_tokens and (len(written) % request.stream_interval == 0):
                        request.on_tokens(list(written))
                    await asyncio.sleep(self.pass_seconds)
            if aborted.is_set():
                if self.hears_late and request.on_tokens:
                    request.on_tokens(whole[: len(written) + 3])
                reply["meta_info"]["finish_reason"] = {"type": "abort", "message": "aborted"}
            self.generated += len(written)
            return {**reply, "output_ids": written}
        finally:
            del self.live[rid]
            request.end()


def answers(
    target: Running,
    draft: Running | None,
    sampling: Sampling,
    *,
    seeds: bool = True,
    relaxed: Mapping[str, float] = MappingProxyType({}),
    max_tokens: int = 120,
    many: int = 1,
    policy: str = "fixed",
    experience: RunStatistics | None = None,
    **more: Any,
) -> Any:
    """Answers at the same time; returns their traces, and the virtual seconds."""
    roles = {"target": target, **({"draft": draft} if draft else {})}
    backend = deployment(**roles)
    set_facts(*backend.roles.values(), seeded=seeds)
    if target.width > 1:
        draws: Literal["seeds", "coins"] = "seeds" if seeds else "coins"
        set_facts(backend, fed=FedLayer(target.width, draws), relaxed=relaxed, token_layer="NGRAM")
    set_facts(backend, increments=target.increments)
    if draft is not None and draft.vocabulary:
        tokenizer = backend.roles["draft"].tokenizer
        backend.roles["draft"].tokenizer = other = copy.copy(tokenizer)
        other.vocabulary = draft.vocabulary
    experience = experience or RunStatistics()

    async def run() -> tuple[list[Any], float]:
        clock = asyncio.get_running_loop().time
        began = clock()
        made = []
        for number in range(many):
            request = AnswerRequest(
                Lookahead(max_step_tokens=20, policy=policy),
                sampling.replace(seed=sampling.seed + number),
                Limits(max_tokens=max_tokens),
                verifier=Exact() if draft else None,
                experience=experience,
                **more,
            )
            made.append(request)
        program = lookahead if draft else autoregressive
        await asyncio.gather(
            *(
                run_program(program, messages=CONVERSATION, request=request, backend=backend)
                for request in made
            )
        )
        return [request.trace for request in made], clock() - began

    return run_virtually(run())


SAMPLED = Sampling(temperature=0.8, top_p=0.9, seed=5)


def plain_of(sampling: Sampling, **more: Any) -> tuple[Any, float]:
    (plain,), seconds = answers(Running(3), None, sampling, **more)
    return plain, seconds


@pytest.mark.parametrize("noise", [0.0, 0.4, 3.0])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_fed_answer_is_plain_decodings_in_one_request(temperature: float, noise: float) -> None:
    sampling = SAMPLED.replace(temperature=temperature)
    plain, alone = plain_of(sampling)
    target, draft = Running(3, width=WIDTH), Running(3, noise, 0.002)
    (fed,), seconds = answers(target, draft, sampling)
    assert (fed.ids, fed.text, fed.finish) == (plain.ids, plain.text, plain.finish)
    assert [one.text for one in fed.steps] == [one.text for one in plain.steps]
    assert target.began == 1 and fed.lossless == "text" and not fed.not_fed
    used = fed.tokens()
    assert used["generated"] == used["used"] + used["wasted"] and used["wasted"] >= 0
    assert all(b.outcome is not None and b.result is None for b in fed.branches)
    assert not target.live and not draft.live
    if noise == 0.0:
        assert seconds < alone / 3
        assert fed.accepted == len(fed.steps) and fed.agreed_tokens == fed.read_tokens > 0


def test_tokens_of_a_draft_that_was_given_up_are_nothing_to_the_next_one() -> None:
    passes = []
    for late in (False, True):
        target, draft = Running(3, width=WIDTH), Running(3, 0.4, 0.006)
        draft.hears_late = late
        (fed,), _ = answers(target, draft, SAMPLED)
        assert draft.began > 3
        passes.append((target.passes, fed.read_tokens, fed.agreed_tokens, fed.ids))
    assert passes[0] == passes[1]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 8, 9, 10, 17, 40])
def test_a_fed_answer_ends_at_its_token_budget(max_tokens: int) -> None:
    plain, _ = plain_of(SAMPLED, max_tokens=max_tokens)
    draft = Running(3, 0.3, 0.002)
    (fed,), _ = answers(Running(3, width=WIDTH), draft, SAMPLED, max_tokens=max_tokens)
    assert (fed.ids, fed.finish) == (plain.ids, plain.finish)


def test_eight_fed_answers_at_once_share_one_message_a_turn() -> None:
    plain, _ = answers(Running(3), None, SAMPLED, many=8)
    target = Running(3, width=WIDTH)
    fed, _ = answers(target, Running(3, 0.2, 0.002), SAMPLED, many=8)
    assert [one.ids for one in fed] == [one.ids for one in plain]
    assert max(len({rid for rid, _, _ in parts}) for parts in target.delivered) > 1
    assert all(len(parts) == len({rid for rid, _, _ in parts}) for parts in target.delivered)


@pytest.mark.parametrize("fault", ["fails_at", "hangs_at"])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("pass_seconds", [0.1, 0.005])
def test_a_draft_that_dies_or_hangs_costs_speed_only(
    fault: str, number: int, pass_seconds: float
) -> None:
    (plain,), alone = answers(Running(3, seconds=pass_seconds), None, SAMPLED)
    draft = Running(3, 0.0, 0.002, **{fault: number})
    (fed,), seconds = answers(Running(3, seconds=pass_seconds, width=WIDTH), draft, SAMPLED)
    assert fed.ids == plain.ids
    assert seconds <= alone + 0.1 and not draft.live
    noticed = fault == "fails_at" or alone > DRAFT_SECONDS  # a fast answer is given before
    assert (fed.failures["draft"] >= 1) == noticed


@pytest.mark.parametrize("loses", [{0}, {1, 2}, set(range(1, 1000))], ids=str)
def test_lines_that_get_lost_are_sent_again_and_change_no_text(loses: set[int]) -> None:
    plain, _ = plain_of(SAMPLED)
    target = Running(3, width=WIDTH, loses=frozenset(loses))
    (fed,), _ = answers(target, Running(3, 0.0, 0.002), SAMPLED)
    assert fed.ids == plain.ids
    if len(loses) < 10:
        assert target.passes < len(plain.ids) / 2


def test_a_request_that_is_sent_again_gets_its_line_again() -> None:
    """Its id is a new one, and nobody knows the old one any more."""
    whole = Running(3, width=WIDTH)
    (once,), _ = answers(whole, Running(3, 0.0, 0.002), SAMPLED)
    target = Running(3, width=WIDTH, breaks=1)
    (fed,), _ = answers(target, Running(3, 0.0, 0.002), SAMPLED)
    assert fed.ids == once.ids
    assert len({rid for parts in target.delivered for rid, _, _ in parts}) == 2
    assert target.passes <= whole.passes + 1


def test_a_draft_that_comes_back_is_used_again() -> None:
    """Its first request fails, and it is left alone for a while."""
    target, draft = Running(3, seconds=0.2, width=WIDTH), Running(3, 0.0, 0.002, fails_at=0)

    def back(ids: Any) -> None:
        if len(ids) == 30:
            draft.fails_at = 10**6

    plain, _ = plain_of(SAMPLED)
    (fed,), _ = answers(target, draft, SAMPLED, on_tokens=back)
    assert fed.ids == plain.ids and fed.failures["draft"] >= 1
    assert fed.agreed_tokens > 0


def test_an_answer_whose_draft_has_another_vocabulary_is_not_fed() -> None:
    target, draft = Running(3, width=WIDTH), Running(3, 0.0, 0.002)
    draft.vocabulary = "other"
    plain, _ = plain_of(SAMPLED)
    (told,), _ = answers(target, draft, SAMPLED)
    assert told.ids == plain.ids and "different vocabularies" in told.not_fed
    assert not target.delivered


def test_a_draft_that_is_slower_than_the_target_comes_late() -> None:
    plain, alone = plain_of(SAMPLED)
    (fed,), seconds = answers(Running(3, width=WIDTH), Running(3, 0.0, 0.05), SAMPLED)
    assert fed.ids == plain.ids and fed.late_tokens > 0
    assert seconds <= alone + 0.1


def test_without_seeds_the_draft_writes_greedily() -> None:
    draft = Running(3, 0.0, 0.002)
    (fed,), _ = answers(Running(3, width=WIDTH), draft, SAMPLED, seeds=False)
    assert fed.lossless == "distribution" and fed.read_tokens > 0
    assert {one["sampling_params"]["temperature"] for one in draft.requests} == {0}


GREEDY = SAMPLED.replace(temperature=0.0)
GIVEN = {
    "min_p": (SAMPLED.replace(min_p=0.1), Constraints()),
    "min_p, greedy": (GREEDY.replace(min_p=0.1), Constraints()),
    "frequency_penalty": (SAMPLED, Constraints(frequency_penalty=0.5)),
    "presence_penalty": (SAMPLED, Constraints(presence_penalty=-0.5)),
    "repetition_penalty": (GREEDY, Constraints(repetition_penalty=1.1)),
    "min_new_tokens": (GREEDY, Constraints(min_tokens=3)),
    "logit_bias": (SAMPLED, Constraints(logit_bias={"98": 2.0})),
    "ignore_eos": (SAMPLED, Constraints(ignore_eos=True)),
    "stop_token_ids": (SAMPLED, Constraints(stop_token_ids=(98,))),
}


@pytest.mark.parametrize(
    "relaxed", [{}, RELAXED, RELAXED | LEFT_OUT], ids=["none", "by seeds", "all"]
)
@pytest.mark.parametrize("name", GIVEN)
def test_a_request_that_a_server_does_not_verify_exactly_is_not_fed_and_promised_no_text(
    name: str, relaxed: dict[str, float]
) -> None:
    sampling, constraints = GIVEN[name]
    target, draft = Running(3, width=WIDTH), Running(3, 0.0, 0.002)
    more = {"constraints": constraints, "max_tokens": 20, "relaxed": relaxed}
    (made,), _ = answers(target, draft, sampling, **more)
    assert bool(target.delivered) == (name not in relaxed)
    if name in relaxed:
        assert made.not_fed.endswith(f"verify exactly with {name}")
        assert (made.seeded, made.lossless, made.shared_draws) == (False, "distribution", False)
        assert sampling.greedy or name in made.own_draws
    else:
        assert (made.not_fed, made.seeded, made.lossless) == ("", True, "text")


def test_a_server_that_streams_whole_texts_gets_requests_of_limited_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lr_sglang.algorithm.step_gens.STREAMED", 30)
    plain, _ = plain_of(SAMPLED)
    target = Running(3, width=WIDTH, increments=False)
    (fed,), _ = answers(target, Running(3, 0.1, 0.002), SAMPLED)
    assert fed.ids == plain.ids and target.began == -(-len(plain.ids) // 30)


def test_steps_and_tokens_of_a_fed_answer_are_shown_as_they_are_written() -> None:
    shown: list[tuple[str, int]] = []
    more = {
        "on_step": lambda step: shown.append(("step", step.tokens)),
        "on_tokens": lambda ids: shown.append(("tokens", len(ids))),
    }
    (fed,), _ = answers(Running(3, width=WIDTH), Running(3, 0.2, 0.002), SAMPLED, **more)
    assert sum(n for kind, n in shown if kind == "step") == len(fed.ids)
    assert [kind for kind, _ in shown].count("tokens") > 3
    assert shown[0][0] == "tokens"


def test_drafting_that_does_not_pay_is_left_alone() -> None:
    """The passes of this target take twice as long while a draft writes, which agrees with none."""
    experience = RunStatistics()
    target, draft = Running(3, width=WIDTH), Running(9, 0.0, 0.001)
    target.beside = draft
    drafted = []
    for seed in range(22):
        sampling = SAMPLED.replace(seed=seed)
        (made,), _ = answers(target, draft, sampling, experience=experience)
        drafted.append(sum(b.generated_tokens for b in made.of("draft")) / len(made.ids))
    (plain,), _ = answers(Running(3), None, sampling)
    assert made.ids == plain.ids
    assert sum(drafted[-4:]) < sum(drafted[:4]) / 2


def test_where_auto_writes_alone_it_is_fed() -> None:
    target, draft = Running(3, width=WIDTH), Running(3, 0.0, 0.002)
    experience = RunStatistics()
    for seed in range(8):
        answers(target, draft, SAMPLED.replace(seed=seed), policy="adaptive", experience=experience)
    assert target.delivered and experience.fed == 0 and experience.answers == 0
    assert all(experience.load(role).running == 0 for role in ("target", "draft"))
    assert not target.live and not draft.live


def test_a_fed_answer_whose_listener_fails_leaves_nothing_running() -> None:
    target, draft = Running(3, width=WIDTH), Running(3, 0.0, 0.002)

    def stop(step: Any) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        answers(target, draft, SAMPLED, on_step=stop)
    assert not target.live and not draft.live


def test_answers_that_are_stopped_or_aborted_leave_nothing_on_the_servers() -> None:
    """Of many answers, 16 at once, a tenth is stopped by its client and a tenth loses the request
    of its target on the server.
    """
    count, chance = examples(100), random.Random(4)
    writer = pair(0.9, 0.9, 20, 6)
    experience = RunStatistics()

    async def run() -> list[str]:
        times = Times.load("h200").alone()
        roles = scheduled_roles(times, writer, {"target": Flags("fed", 12)}, seeded=False)
        target = roles["target"]
        free, ends = asyncio.Semaphore(16), list[str]()
        loop = asyncio.get_running_loop()

        async def answer(asked: Any, fate: str) -> None:
            look = Lookahead(max_step_tokens=100)
            request = AnswerRequest(
                look, SAMPLED, Limits(), verifier=Exact(), experience=experience
            )
            async with free:
                if fate == "stopped":
                    loop.call_later(chance.uniform(0, 1), request.stop)
                if fate == "aborted":
                    when = chance.uniform(0.2, 1)
                    rid = lambda: request.trace.of("target")[0].rid
                    loop.call_later(when, lambda: target.transport.abort(rid()))
                try:
                    await run_program(
                        lookahead, messages(asked.question), request=request, backend=target
                    )
                    ends.append(request.trace.finish)
                except Exception as error:  # noqa: BLE001 - counted
                    ends.append(type(error).__name__)
                    assert fate, error

        fates = ["stopped", "aborted", *[""] * 8]
        asked = [answer(one, chance.choice(fates)) for one in questions(count)]
        await asyncio.gather(*asked)
        await asyncio.sleep(1)  # aborts reach the servers
        for backend in roles.values():
            scheduler = backend.transport.scheduler
            assert not scheduler.waiting and not scheduler.running and not scheduler._jobs
            assert not backend.transport._open and backend.slots.waiting == 0
        assert target.lines._task is None and not target.lines._waiting
        return ends

    ends = run_virtually(run())
    assert len(ends) == count and ends.count("stop") >= count / 2
    assert Cancelled.__name__ in ends and len(set(ends)) >= 3
    assert experience.fed == 0
