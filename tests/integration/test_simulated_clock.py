"""What is left of an answer that the real programs have made on the virtual clock."""

import gc
import itertools

import pytest

from lr_sglang.config import Lookahead
from lr_sglang.engine.branch import Branch
from lr_sglang.engine.request import Request
from lr_sglang.frontend.executor import Executor
from lr_sglang.steps.node import Node
from tests import FULL
from tests.simulated.model import Model
from tests.simulated.simulation import Simulation
from tests.simulated.virtual import answer_all, questions

VERIFIED = list(itertools.product(("async", "sync"), ("judge", "exact")))


@pytest.mark.parametrize(("schedule", "verifier"), VERIFIED if FULL else VERIFIED[::3])
def test_what_an_answer_was_made_of_goes_without_a_garbage_collection(schedule, verifier):
    """A busy process seldom looks for garbage (``garbage.keep_what_is_imported``), so there must be
    little.
    """
    look = Lookahead(schedule, 4, 2, verifier=verifier)

    model = Model(alpha=(0.6,), steps=40, own_words=verifier == "judge")
    simulation = Simulation(model, 1.0, 0.1, 0.1)

    def alive():
        found = (one for one in gc.get_objects() if isinstance(one, Executor | Node | Request))
        return sum(not isinstance(one, Branch) for one in found)  # the record keeps its branches

    gc.collect()
    before = alive()  # of other tests
    gc.disable()
    try:
        (answer,) = answer_all(simulation, look, questions(1))
        left = alive() - before
    finally:
        gc.enable()
    assert len(answer.branches) > 200
    assert not any(one.result or one.state or one.node for one in answer.branches)
    assert left < 40  # the state of the answer, and what hung on its last step
