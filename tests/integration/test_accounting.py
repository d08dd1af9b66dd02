"""Where the time of real programs on the real clock goes, over simulated runtimes whose times are
known.
"""

from dataclasses import replace

import pytest

from lr_sglang.api.configuration import Settings
from lr_sglang.api.runner import Runner
from lr_sglang.config import Lookahead, Sampling
from lr_sglang.results import accounting
from lr_sglang.tasks.question import plan
from tests import FULL
from tests.simulated.model import Model
from tests.simulated.simulation import Simulation
from tests.simulated.transport import simulated_roles
from tests.simulated.virtual import questions

STEP, C1, JUDGE = 0.15, 0.2, 0.15
MADE = Simulation(Model(steps=10 if FULL else 6), step_seconds=STEP, c1=C1, judge_seconds=JUDGE)


def records(schedule, depth, simulation=MADE):
    settings = Settings(lookahead=Lookahead(schedule, depth), sampling=Sampling(seed=0))
    with Runner(simulated_roles(simulation), settings) as runner:
        made = list(runner.run(plan(questions(1), ["autoregressive", "lookahead"])))
    assert not any(record["error"] for record in made)
    return made


@pytest.mark.parametrize(
    ("schedule", "depth", "slots"), [("async", 6, None), ("async", 6, 3), ("sync", 3, None)]
)
def test_every_answer_is_accounted_for(schedule, depth, slots):
    for record in records(schedule, depth, replace(MADE, slots=slots)):
        parts = accounting.parts(record)
        assert sum(parts.values()) == pytest.approx(record["seconds"], rel=0.02)
        assert parts["controller"] < 0.5 * record["seconds"]
        if record["mode"] == "autoregressive":
            assert 0.9 < parts["target"] / (len(record["steps"]) * STEP) < 2


def test_the_sync_schedule_waits_in_turn():
    """A cycle waits for the drafts, then for one target step, then for one verdict: all of them
    begin together.

    One after another they would take twice or three times as long; a busy machine is late by less.
    """
    _, record = records("sync", 2)
    cycles = record["cycles"] + (record["steps"][-1]["source"] == "draft")
    parts = accounting.parts(record)
    assert 0.7 * cycles * STEP < parts["target"] < 1.9 * cycles * STEP
    assert 0.7 * (cycles - 1) * 2 * C1 * STEP < parts["draft"] < 2 * cycles * 2 * C1 * STEP
    assert 0.6 * cycles * JUDGE < parts["judge"] < 1.9 * cycles * JUDGE
