"""Simulated models, their time, their faults, and the virtual clock: nothing here waits."""

import asyncio
import gc
import itertools

import pytest
import uvloop

from lr_sglang.config import ROLES, Lookahead
from lr_sglang.engine.request import Request
from lr_sglang.frontend.executor import Executor
from lr_sglang.steps.node import Node
from lr_sglang.theory.judged import answer_time, speedup
from tests import FULL
from tests.simulated.clock import run_virtually
from tests.simulated.model import Model, Writer
from tests.simulated.replies import body, reply
from tests.simulated.runtime import SimulatedRuntime
from tests.simulated.simulation import Simulation
from tests.simulated.virtual import alone, answer_all, numbers, questions
from tests.simulated.words import pocket_words
from tests.unit.test_theory_programs import run as clocked

WORDS = pocket_words()


# -- what they write


def test_a_share_alpha_of_the_drafts_agrees():
    model = Model(alpha=(0.9, 0.3), steps=2)
    for position, alpha in ((0, 0.9), (1, 0.3), (5, 0.3)):
        agreed = sum(model.agrees(question, position, 1) for question in range(4000))
        assert agreed / 4000 == pytest.approx(alpha, abs=0.03)


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


def test_requests_that_are_due_at_once_end_on_the_endpoints_loop_too():
    async def scene():
        runtime = SimulatedRuntime("target", Simulation(slowdown=1.0), Writer(Model()))
        return await asyncio.gather(runtime.serve(0.0, "1"), runtime.serve(0.0, "2"))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(scene()) == [1.0, 1.0]


# -- faults


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
