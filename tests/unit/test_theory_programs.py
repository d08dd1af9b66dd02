"""The theory against the real programs, which run on the virtual clock."""

import itertools

import pytest

from lr_sglang.config import Lookahead
from lr_sglang.theory.judged import answer_time, speedup
from lr_sglang.theory.paper import f_async, f_sync, parallel, s1, s2
from tests.simulated.clock import run_virtually
from tests.simulated.model import Model, Simulation, Writer
from tests.simulated.transport import simulated_roles
from tests.simulated.virtual import alone, answer_on, numbers, questions

SCHEDULES = ("sync", "async")
# alpha, c1, depth, judge: S1 and S2, judges from free to slow, whole and broken 1/c1.
CASES = [
    (0.63, 0.1, 6, 0.0),
    (0.63, 0.1, 6, 0.2),
    (0.5, 0.3, 3, 0.5),
    (0.8, 0.25, 4, 0.0),
    (0.45, 0.37, 5, 0.1),
    (0.9, 0.45, 2, 1.3),
]
# Steps that a cycle may go on for: what comes after has no weight at alpha 0.9.
LONGEST = 120


def run(schedule, c1, depth, judge=0.0, *, accepted, width=1):
    """An answer whose drafts are accepted as ``accepted`` says, by position, with times in target
    steps; and the most target branches at once.
    """
    model = Model(trace=(tuple(accepted),), steps=len(accepted), tokens=9, width=width)
    roles = simulated_roles(Simulation(model, 1.0, c1, judge))
    (answer,) = run_virtually(answer_on(roles, Lookahead(schedule, depth, width), questions(1)))
    assert len(answer.steps) == len(accepted)
    return answer, roles["target"].transport.most


def but(refused, steps):
    """All are accepted but one."""
    return [position != refused for position in range(steps)]


def ends(schedule, c1, depth, judge):
    """When the program ends a cycle whose first refused step is number x, for all x."""

    def kept(*accepted):
        answer, _ = run(schedule, c1, depth, judge, accepted=accepted)
        return [step.seconds for step in answer.steps]

    if schedule == "sync":
        return [kept(*but(x, depth + 2))[x] for x in range(depth + 1)]
    whole = kept(*[True] * LONGEST)
    # A refusal takes as long as an acceptance; a few are looked at, for all would take their time.
    for x in (0, 1, depth, depth + 1, 2 * depth + 1):
        assert kept(*but(x, 3 * depth + 3))[x] == pytest.approx(whole[x])
    return whole


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("alpha", "c1", "depth", "judge"), CASES)
def test_a_cycle_of_the_program_has_the_expected_speed_up(schedule, alpha, c1, depth, judge):
    """Exact: every length of a cycle is run, and weighed with its probability."""
    times = ends(schedule, c1, depth, judge)
    last = len(times) - 1
    weights = [alpha**x * (1 - alpha if x < last else 1) for x in range(last + 1)]
    steps = sum(w * (x + 1) for x, w in enumerate(weights))
    taken = sum(w * time for w, time in zip(weights, times, strict=True))
    assert steps / taken == pytest.approx(speedup(schedule, alpha, c1, depth, judge), rel=1e-5)
    if judge == 0:
        papers = f_sync if schedule == "sync" else f_async
        assert steps / taken == pytest.approx(
            papers(alpha, c1, depth + (schedule == "sync")), rel=1e-5
        )


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("alpha", "c1", "depth", "judge"), CASES)
def test_a_short_answer_takes_as_long_as_expected(schedule, alpha, c1, depth, judge):
    """Exact: every pattern of acceptances is run, and weighed with its probability."""
    steps, expected = 4, 0.0
    for accepted in itertools.product((True, False), repeat=steps):
        weight = alpha ** sum(accepted) * (1 - alpha) ** (steps - sum(accepted))
        expected += weight * run(schedule, c1, depth, judge, accepted=accepted)[0].seconds
    assert answer_time(schedule, alpha, c1, depth, judge, steps) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("c1", "depth", "formula"), [(0.3, 3, "S2"), (0.3, 4, "S1"), (0.3, 9, "S1")]
)
def test_k1_is_depth_in_async_and_the_draft_limits_from_there(c1, depth, formula):
    answer, most = run("async", c1, depth, accepted=[True] * 300)
    assert most == parallel("async", c1, depth) == min(depth, 4)
    papers = s1(1, c1) if formula == "S1" else s2(1, c1, depth)
    assert 300 / answer.seconds == pytest.approx(papers, rel=0.01)


@pytest.mark.parametrize("width", [1, 2])
def test_k1_is_depth_plus_one_in_sync(width):
    _, most = run("sync", 0.2, 3, accepted=[True] * 8, width=width)
    levels = parallel("sync", 0.2, 3 + 1)
    assert most == sum(width**level for level in range(levels))


@pytest.mark.parametrize("judge", [0.0, 2.0])
def test_a_slow_judge_does_not_keep_the_target_busy(judge):
    assert run("async", 0.3, 12, judge, accepted=[True] * 60)[1] == 4


def test_a_draft_as_slow_as_the_target_gains_nothing():
    """It is always late."""
    answer, _ = run("async", 1.01, 4, accepted=[True] * 20)
    assert answer.seconds == pytest.approx(20)


@pytest.mark.parametrize(("schedule", "low", "high"), [("sync", 0.6, 0.8), ("async", 0.9, 1.0)])
def test_steps_of_unequal_length_gain_less(schedule, low, high):
    """The paper's are equal. These vary by half their mean: a batch waits for its longest, an order
    for its first.
    """
    model = Model(alpha=(0.63,), steps=300, spread=0.5)
    simulation, asked = Simulation(model, 1.0, 0.1, 0.1), questions(1)
    look = Lookahead(schedule, max_step_tokens=model.longest)
    (answer,) = run_virtually(answer_on(simulated_roles(simulation), look, asked))
    (plain,) = alone(simulation, numbers(Writer(model), asked))
    assert low < plain / answer.seconds / speedup(schedule, 0.63, 0.1, 6, 0.1) < high
