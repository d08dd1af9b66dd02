"""The real programs on the virtual clock, side by side, and what is left of them."""

import gc
import itertools

import pytest

from lr_sglang.config import ROLES, Lookahead
from lr_sglang.engine.request import Request
from lr_sglang.frontend.executor import Executor
from lr_sglang.steps.node import Node
from tests import FULL
from tests.simulated.model import Model
from tests.simulated.simulation import Simulation
from tests.simulated.virtual import answer_all, questions


def setting(alpha, c1, judge, steps=200, **more):
    return Simulation(Model(alpha=(alpha,), steps=steps, **more), 1.0, c1, judge)


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
