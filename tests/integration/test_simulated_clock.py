"""Simulated models, their time, their faults, and the virtual clock: nothing here waits."""

import asyncio
import gc
import itertools
from dataclasses import replace

import httpx
import pytest
import uvloop

from lr_sglang.config import ROLES, Lookahead
from lr_sglang.engine.request import Request
from lr_sglang.errors import RuntimeTimeout
from lr_sglang.frontend.executor import Executor
from lr_sglang.programs.rate import OPENING, QUESTION
from lr_sglang.steps.node import Node
from lr_sglang.theory.judged import answer_time, speedup
from tests import FULL
from tests.simulated.clock import run_virtually
from tests.simulated.faults import Fault, Faults
from tests.simulated.model import TARGET, Model, Writer
from tests.simulated.replies import body, reply
from tests.simulated.runtime import Cache, SimulatedRuntime
from tests.simulated.server import SimulatedServer
from tests.simulated.simulation import Simulation
from tests.simulated.transport import simulated_roles
from tests.simulated.virtual import alone, answer_all, numbers, questions
from tests.simulated.words import Head, pocket_words
from tests.unit.test_theory_programs import run as clocked

WORDS = pocket_words()


# -- what they write


@pytest.mark.parametrize(
    "head", [Head(0, 0, 0, 0), Head(39_999, 299, 1, 199), Head(201, 200, 7, 42)]
)
def test_the_head_of_a_step_can_be_read_from_its_tokens_and_from_its_text(head):
    ids = WORDS.head(head)
    assert WORDS.read(ids) == head
    text = WORDS.tokenizer.decode(ids)
    assert WORDS.find(f"<start_s1>\n{text}\n<end_s1>") == [head]
    assert WORDS.tokenizer.encode(text) == ids


def test_a_share_alpha_of_the_drafts_agrees():
    model = Model(alpha=(0.9, 0.3), steps=2)
    for position, alpha in ((0, 0.9), (1, 0.3), (5, 0.3)):
        agreed = sum(model.agrees(question, position, 1) for question in range(4000))
        assert agreed / 4000 == pytest.approx(alpha, abs=0.03)


def test_a_trace_says_which_drafts_agree():
    model = Model(trace=((True, False), (False, False, True)))
    assert [model.agrees(0, n, 1) for n in range(4)] == [True, False, True, False]
    assert [model.agrees(1, n, 1) for n in range(4)] == [False, False, True, False]


@pytest.mark.parametrize("own_words", [True, False])
def test_versions_that_agree_mean_the_same_and_the_judge_sees_it(own_words):
    writer = Writer(Model(own_words=own_words))
    for position in range(40):
        target, draft = (writer.model.step(WORDS, 5, position, version) for version in (0, 1))
        agrees = writer.model.agrees(5, position, 1)
        assert (target == draft) == (agrees and not own_words)
        texts = [WORDS.tokenizer.decode(ids).strip() for ids in (target, draft)]
        label = writer.judge(writer.words.tokenizer.encode("Step 1: {}\nStep 2: {}".format(*texts)))
        assert label == ("aligned" if agrees else "unaligned")


def test_a_prompt_tells_where_it_is_also_in_the_middle_of_a_step():
    writer, prompt = (
        Writer(Model(steps=4)),
        WORDS.tokenizer.chat([{"role": "user", "content": "So the cost?"}], True).ids,
    )
    place = writer.place(prompt)
    assert (place.position, place.offset) == (0, 0)
    whole = writer.write(place, 0, 10**6, False)
    assert whole.finish == "end" and whole.ids[-1] == WORDS.eos and len(whole.ids) == 4 * 24
    for cut in range(9, len(whole.ids) - 1):
        rest = writer.write(writer.place(prompt + whole.ids[:cut]), 0, 10**6, False)
        assert whole.ids[:cut] + rest.ids == whole.ids


@pytest.mark.parametrize("position", [0, 3])  # the last step of its answer is 3
def test_after_the_end_of_a_step_there_is_another_turn(position):
    writer = Writer(Model(steps=4))
    step = writer.model.step(writer.words, 7, position, TARGET)[:-1]
    prompt = (5, 6, *step, *(position % 3 for _ in range(30)))
    found = writer.place(prompt)
    assert found == (writer.words.number(prompt), 0, TARGET, 0)
    assert writer.write(found, TARGET, 100, one_step=True).finish == "delimiter"


def test_replies_have_the_form_of_sglangs():
    writer, prompt = Writer(Model(steps=2)), [1, 2, 3]
    step = {
        "input_ids": prompt,
        "sampling_params": {"max_new_tokens": 100, "stop": "\n\n", "no_stop_trim": True},
    }
    first = body(writer, reply(writer, "target", step))
    assert first["text"].endswith("\n\n") and first["meta_info"]["finish_reason"] == {
        "type": "stop",
        "matched": "\n\n",
    }
    last = body(
        writer, reply(writer, "target", {**step, "input_ids": prompt + first["output_ids"]})
    )
    assert last["meta_info"]["finish_reason"] == {"type": "stop", "matched": WORDS.eos}
    capped = body(
        writer,
        reply(writer, "target", {"input_ids": prompt, "sampling_params": {"max_new_tokens": 10}}),
    )
    assert capped["meta_info"]["finish_reason"] == {"type": "length", "length": 10}
    aborted = body(writer, reply(writer, "target", step), 0.5)
    assert (
        aborted["meta_info"]["finish_reason"]["type"] == "abort"
        and len(aborted["output_ids"]) == 12
    )


def asked(writer, question, versions):
    """A prompt: a question and steps after it, in these versions."""
    prompt = WORDS.tokenizer.chat([{"role": "user", "content": question}], True).ids
    number = writer.words.number(prompt)
    return prompt, [
        writer.model.step(WORDS, number, n, version) for n, version in enumerate(versions)
    ]


def scored(writer, prompt, tokens, **sampling):
    """The last tokens of a prompt, as the backend asks for them."""
    start = max(0, len(prompt) - tokens - 1)
    payload = {"input_ids": prompt, "return_logprob": True, "logprob_start_len": start}
    return body(
        writer,
        reply(writer, "target", {**payload, "sampling_params": {"max_new_tokens": 0, **sampling}}),
    )


@pytest.mark.parametrize("own_words", [True, False])
def test_a_target_finds_likely_what_agrees(own_words):
    writer = Writer(Model(own_words=own_words, steps=60))
    prompt, steps = asked(writer, "How?", [0, *[1] * 40])
    number = writer.words.number(prompt)
    for n, step in enumerate(steps):
        prompt += step
        made = scored(writer, prompt, len(step))
        logprobs = [one[0] for one in made["meta_info"]["input_token_logprobs"]]
        assert logprobs.pop(0) is None and len(logprobs) == len(step) and made["output_ids"] == []
        agrees = writer.model.agrees(number, n, 1 if n else 0)
        assert (min(logprobs) >= -3) == agrees
        assert (sum(logprobs) / len(logprobs) >= -0.3) == agrees
        assert (min(logprobs) >= -0.69) == (agrees and (n == 0 or not own_words)), (
            "a greedy target would write it"
        )
        parts = [scored(writer, prompt[: len(prompt) - len(step) + cut], cut) for cut in (8, 20)]
        for cut, part in zip((8, 20), parts, strict=True):
            assert [one[0] for one in part["meta_info"]["input_token_logprobs"][1:]] == logprobs[
                :cut
            ]


def test_a_target_rates_what_agrees_higher():
    writer = Writer(Model())
    prompt, steps = asked(writer, "How?", [1] * 40)
    turn = [{"role": "user", "content": QUESTION}]
    tail = WORDS.tokenizer.chat(turn, True).ids + WORDS.tokenizer.encode(OPENING)
    seen = set()
    for n, step in enumerate(steps):
        prompt += step
        payload = {"input_ids": prompt + tail, "sampling_params": {"max_new_tokens": 1}}
        rated = int(body(writer, reply(writer, "target", payload))["text"])
        assert (rated >= 7) == writer.model.agrees(
            writer.words.number(prompt[: -24 * (n + 1)]), n, 1
        )
        seen.add(rated)
    assert len(seen) > 5
    nothing = {"input_ids": tail, "sampling_params": {"max_new_tokens": 1}}
    assert body(writer, reply(writer, "target", nothing))["text"] == "0"


# -- time


def served(*arrivals, **how):
    """When each request of (time, work) has been served."""

    async def scene():
        runtime, now = (
            SimulatedRuntime("target", Simulation(**how), Writer(Model())),
            asyncio.get_running_loop().time,
        )

        async def one(rid, at, work):
            await asyncio.sleep(at)
            assert await runtime.serve(work, rid) == 1
            return now()

        return await asyncio.gather(*(one(str(n), *arrival) for n, arrival in enumerate(arrivals)))

    return run_virtually(scene())


def test_requests_alone_take_what_they_take():
    assert served((0, 1), (0.5, 2), (0.6, 0.1)) == pytest.approx([1, 2.5, 0.7])


def test_a_batch_is_slower_for_all_of_it():
    # two at half the speed (slowdown 1): the first has done 1 of 2 when the second comes
    assert served((0, 2), (1, 2), slowdown=1.0) == pytest.approx([3, 4])


def test_beyond_its_slots_a_runtime_lets_wait():
    assert served((0, 2), (1, 2), (1, 1), slots=1) == pytest.approx([2, 4, 5])


def over_http(use, simulation=None, role="target"):
    """What ``use`` makes of a client of one simulated runtime; an error in the server is
    one here.
    """
    simulation = simulation or Simulation(Model(steps=3), step_seconds=0.01)
    app = SimulatedServer(
        SimulatedRuntime(role, simulation, Writer(simulation.model)), lambda: None
    ).app()

    async def run():
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://simulated"
        ) as client:
            return await use(client)

    return run_virtually(run())


def test_over_http_only_what_was_written_is_cached():
    """Of an aborted answer no more than it has."""

    async def use(client):
        async def ask(prompt, most, rid="a"):
            asked = {"input_ids": prompt, "sampling_params": {"max_new_tokens": most}, "rid": rid}
            return (await client.post("/generate", json=asked)).json()

        whole = (await ask([1, 2, 3], 1000))["output_ids"]
        await client.post("/flush_cache")
        stopped = asyncio.ensure_future(ask([1, 2, 3], 1000))
        await asyncio.sleep(0.15)
        await client.post("/abort_request", json={"rid": "a"})
        part = (await stopped)["output_ids"]
        again = (await ask([1, 2, 3, *whole[:-1]], 1))["meta_info"]["cached_tokens"]
        return len(part), len(whole), again

    part, whole, again = over_http(use, Simulation(Model(steps=3), step_seconds=0.1))
    assert 1 <= part < whole and again == 3 + part - 1


def test_who_leaves_makes_the_others_faster():
    async def scene():
        runtime = SimulatedRuntime("target", Simulation(slowdown=1.0, slots=2), Writer(Model()))
        first, second, third = (
            asyncio.create_task(runtime.serve(2.0, rid)) for rid in ("1", "2", "3")
        )
        await asyncio.sleep(1)
        runtime.abort("3")
        runtime.abort("1")
        runtime.abort("1")  # again: nothing happens
        assert await asyncio.gather(first, third) == [pytest.approx(0.25), 0]
        assert (runtime.aborted, runtime.running, await second) == (2, 1, 1)
        return asyncio.get_running_loop().time()

    assert run_virtually(scene()) == pytest.approx(2.5)


def test_requests_that_are_due_at_once_end_on_the_endpoints_loop_too():
    async def scene():
        runtime = SimulatedRuntime("target", Simulation(slowdown=1.0), Writer(Model()))
        return await asyncio.gather(runtime.serve(0.0, "1"), runtime.serve(0.0, "2"))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(scene()) == [1.0, 1.0]


@pytest.mark.parametrize("more", [{"slots": 1}, {"slowdown": 1.0}])
def test_a_request_that_others_hold_up_runs_out_of_time(more):
    async def scene():
        target = simulated_roles(Simulation(Model(steps=3), step_seconds=1.0, **more))[
            "target"
        ].transport
        asked = {
            "input_ids": [1, 2, 3],
            "sampling_params": {"max_new_tokens": 1000},
        }  # 3 seconds alone
        both = (target.generate(asked, Request(), seconds) for seconds in (100.0, 4.0))
        first, second = await asyncio.gather(*both, return_exceptions=True)
        assert first["output_ids"] and isinstance(second, RuntimeTimeout)
        return asyncio.get_running_loop().time()

    assert run_virtually(scene()) > 3


# -- faults


def test_faults_come_as_they_are_ordered():
    faults = Faults()
    assert faults.next() is None
    faults.order(Fault("late", after=2, times=1, seconds=3.0))
    assert [fault.kind if (fault := faults.next()) else "" for _ in range(5)] == [
        "",
        "",
        "late",
        "",
        "",
    ]
    faults.order(Fault("fail", share=0.25))
    assert 50 < sum(faults.next() is not None for _ in range(400)) < 150
    faults.clear()
    assert faults.next() is None


def test_the_cache_shares_the_longest_prefix_but_for_one_token():
    cache = Cache()
    assert cache.find((1, 2, 3)) == 0
    cache.add((1, 2, 3))
    cache.add((1, 2, 4, 5))
    assert [cache.find(p) for p in ((1, 2, 3), (1, 2, 3, 9), (1, 2, 4, 5, 6), (2,))] == [2, 3, 4, 0]


# -- the virtual clock

POINTS = [
    (0.63, 0.1, 6, 0.0),
    (0.63, 0.1, 6, 0.2),
    (0.5, 0.3, 3, 0.5),
    (0.8, 0.25, 4, 0.1),
    (0.9, 0.45, 2, 1.3),
]


def setting(alpha, c1, judge, steps=200, **more):
    return Simulation(Model(alpha=(alpha,), steps=steps, **more), 1.0, c1, judge)


@pytest.mark.parametrize("schedule", ["async", "sync"])
@pytest.mark.parametrize(("alpha", "c1", "depth", "judge"), POINTS)
def test_it_is_the_simulated_clock_of_the_theory_with_the_same_draws(
    schedule, alpha, c1, depth, judge
):
    steps = 200 if FULL else 60
    simulation, asked = setting(alpha, c1, judge, steps), questions(1)
    (number,) = numbers(Writer(simulation.model), asked)
    (answer,) = answer_all(simulation, Lookahead(schedule, depth), asked)
    other = clocked(
        schedule, lambda n: simulation.model.agrees(number, n, 1), c1, depth, judge, steps=steps
    )
    assert len(answer.steps) == steps
    assert answer.seconds == pytest.approx(other.now, rel=1e-9)
    assert alone(simulation, [number]) == [pytest.approx(steps)]


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_the_mean_of_many_answers_is_the_formulas(schedule):
    count, near = (150, 0.025) if FULL else (12, 0.05)
    answers = answer_all(setting(0.63, 0.1, 0.2, steps=60), Lookahead(schedule), questions(count))
    mean = sum(answer.seconds for answer in answers) / len(answers)
    assert mean == pytest.approx(answer_time(schedule, 0.63, 0.1, 6, 0.2, 60), rel=near)
    assert 60 / mean == pytest.approx(speedup(schedule, 0.63, 0.1, 6, 0.2, 60), rel=near)


VERIFIED = list(itertools.product(("async", "sync"), ("judge", "exact")))


@pytest.mark.parametrize(("schedule", "verifier"), VERIFIED if FULL else VERIFIED[::3])
def test_what_an_answer_was_made_of_goes_without_a_garbage_collection(schedule, verifier):
    """A busy process seldom looks for garbage (``garbage.keep_what_is_imported``), so there must be
    little.
    """
    look = Lookahead(schedule, 4, 2, verifier=verifier)

    def alive():
        return sum(isinstance(one, Executor | Node | Request) for one in gc.get_objects())

    gc.collect()
    before = alive()  # of other tests
    gc.disable()
    try:
        (answer,) = answer_all(
            setting(0.6, 0.1, 0.1, steps=40, own_words=verifier == "judge"), look, questions(1)
        )
        left = alive() - before
    finally:
        gc.enable()
    assert len(answer.branches) > 200
    assert left < 40  # the state of the answer, and what hung on its last step


BESIDE = list(itertools.product(("async", "sync"), (1, 2), (0.0, 0.5)))


@pytest.mark.parametrize(("schedule", "width", "spread"), BESIDE if FULL else BESIDE[::3])
def test_side_by_side_each_answer_is_as_it_is_alone(schedule, width, spread):
    """Where its runtimes have room for all, and none slows another down."""
    simulation = setting(0.6, 0.13, 0.17, steps=40 if FULL else 20, spread=spread, width=width)
    look = Lookahead(schedule, 3, width, max_step_tokens=simulation.model.longest)
    together = answer_all(simulation, look, questions(5))
    one_by_one = [answer_all(simulation, look, [question])[0] for question in questions(5)]
    assert [a.seconds for a in together] == pytest.approx([a.seconds for a in one_by_one])
    for one, other in zip(
        together, one_by_one, strict=True
    ):  # two events of one moment may change places
        assert [len(one.of(role)) for role in ROLES] == pytest.approx(
            [len(other.of(role)) for role in ROLES], abs=2
        )
        assert one.text == other.text


def test_a_slow_batch_and_few_slots_take_longer():
    look, free = Lookahead(depth=4), setting(0.6, 0.1, 0.1, steps=20)

    def mean(**more):
        answers = answer_all(replace(free, **more), look, questions(8))
        assert all(len(a.steps) == 20 for a in answers)
        return sum(a.seconds for a in answers) / 8

    assert mean() < mean(slowdown=0.02) < mean(slowdown=0.2)
    assert mean() < mean(slots=8)
    assert sum(alone(replace(free, slowdown=0.1), range(8))) == pytest.approx(8 * 20 * 1.7)
