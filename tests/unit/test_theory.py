"""The paper's formulas, ours, and the planner: against what the paper prints, limits and each
other.
"""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lr_sglang.config import Lookahead
from lr_sglang.errors import ConfigError
from lr_sglang.theory import judged, paper
from lr_sglang.theory.judged import Case, answer_time, speedup
from lr_sglang.theory.paper import f_async, f_sync
from tests import SCHEDULES
from tests.simulated.clock import run_virtually
from tests.simulated.model import Model, Simulation, Writer
from tests.simulated.transport import simulated_roles
from tests.simulated.virtual import alone, answer_on, numbers, questions

shares = st.floats(0.01, 0.99)
costs = st.floats(0.01, 0.99)
widths = st.integers(1, 40)
schedules = st.sampled_from(SCHEDULES)
few = settings(max_examples=60, deadline=None)


# -- the paper's formulas, as they are printed there


def printed_s2(a, c, k):
    return (1 - a**k) / ((1 - a) + c * (a - a ** (k + 1) - k * (1 - a) * a**k))


@few
@given(shares, costs, widths)
def test_they_are_the_printed_ones(a, c, k):
    assert paper.g(a, c, k) == pytest.approx((1 - a**k) / ((1 - a) * (1 - c + c * k)))
    assert paper.f_sync(a, c, k) == paper.g(a, c, k)
    assert paper.s1(a, c) == pytest.approx(1 / (c + (1 - c) * (1 - a)))
    run = a / (1 - a)
    assert paper.s1(a, c) == pytest.approx((1 + run) / (1 + c * run))
    if k * c < 1:
        assert paper.s2(a, c, k) == paper.f_async(a, c, k) == pytest.approx(printed_s2(a, c, k))
    else:
        assert paper.f_async(a, c, k) == paper.s1(a, c)
    assert paper.expected_run(a, k) == pytest.approx(sum(a**i for i in range(k)))


# -- limits and shapes


@few
@given(costs, widths)
def test_alpha_0_gains_nothing(c, k):
    assert paper.f_async(0, c, k) == 1
    assert paper.f_sync(0, c, k) <= 1
    assert paper.g(0, c, 1) == paper.bound(0) == 1


@few
@given(costs, widths)
def test_alpha_1_gains_what_the_machine_allows(c, k):
    assert paper.f_async(1, c, k) == pytest.approx(1 / c if paper.draft_limited(c, k) else k)
    assert paper.f_sync(1, c, k) == pytest.approx(k / (1 + c * (k - 1)))
    assert paper.bound(1) == math.inf


@few
@given(shares)
def test_a_free_draft_and_any_depth_reach_the_bound(a):
    assert paper.f_async(a, 0, 4000) == pytest.approx(paper.bound(a))
    assert paper.s1(a, 1e-9) == pytest.approx(paper.bound(a), rel=1e-5)
    assert paper.h(a, 0, 4000, a, 0, 4000, "sync") == pytest.approx(paper.bound(a) ** 2)


def test_s1_and_s2_meet():
    for k in range(2, 60):
        assert paper.draft_limited(1 / k, k)
        assert paper.s2(0.7, 1 / k, k) == pytest.approx(paper.s1(0.7, 1 / k))


@few
@given(
    schedules,
    shares,
    costs,
    st.integers(1, 30),
    st.floats(0, 3),
    st.one_of(st.none(), st.integers(1, 40)),
)
def test_more_agreement_and_a_faster_draft_or_judge_never_hurt(schedule, a, c, depth, judge, steps):
    speed = judged.speedup(schedule, a, c, depth, judge, steps)
    little = 1 + 1e-9
    assert judged.speedup(schedule, min(1, a + 0.01), c, depth, judge, steps) * little >= speed
    assert judged.speedup(schedule, a, c * 0.9, depth, judge, steps) * little >= speed
    assert judged.speedup(schedule, a, c, depth, judge * 0.9, steps) * little >= speed
    assert speed <= paper.bound(a) * little


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("judge", [0.0, 0.4])
def test_long_answers_come_to_the_formula_without_an_end(schedule, judge):
    endless = judged.speedup(schedule, 0.6, 0.2, 4, judge)
    assert judged.speedup(schedule, 0.6, 0.2, 4, judge, 500) == pytest.approx(endless, rel=0.005)
    assert judged.answer_time(schedule, 0.6, 0.2, 4, judge, 1) == pytest.approx(
        1 + judge + (schedule == "sync") * 0.2
    )


# -- the planner


@few
@given(schedules, shares, costs, st.integers(1, 24), st.floats(0, 1))
def test_no_depth_is_better_than_the_best_by_more_than_is_spared(schedule, a, c, deepest, judge):
    case = Case(a, c, judge)
    best = judged.best_depth(case, schedule, deepest)
    enough = [d for d in range(1, deepest + 1) if case.speedup(schedule, d) > best.speedup]
    assert all(case.speedup(schedule, d) * 0.98 <= best.speedup * (1 + 1e-6) for d in enough)
    assert all(d > best.depth for d in enough)
    assert best.speedup == (case.speedup(schedule, best.depth) if best.depth else 1)


def test_lookahead_is_left_off_where_it_loses():
    assert judged.best_depth(Case(0.1, 0.9, judge=1), "async").depth == 0


def test_a_slow_down_is_paid_by_lookahead_only():
    slow = Case(0.6, 0.1, slowdown=1.5)
    assert slow.speedup("async", 4) == pytest.approx(paper.f_async(0.6, 0.1, 4) / 1.5)


# -- refusals


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: paper.g(1.1, 0.1, 2), "alpha2"),
        (lambda: paper.g(math.nan, 0.1, 2), "alpha2"),
        (lambda: paper.g(0.5, 1, 2), "c2"),
        (lambda: paper.f_sync(-0.1, 0.1, 2), "alpha1"),
        (lambda: paper.f_async(0.5, math.nan, 2), "c1"),
        (lambda: paper.f_async(0.5, 0.1, 0), "k1"),
        (lambda: paper.s2(0.5, 0.3, 4), "k1"),
        (lambda: judged.speedup("sync", 0.5, 0.1, 0), "depth"),
        (lambda: judged.speedup("sync", 0.5, 0.1, 1, -1), "judge"),
        (lambda: judged.speedup("async", 0.5, 0.1, 1, math.inf), "judge"),
        (lambda: judged.speedup("async", 0.5, 0.1, 1, steps=0), "steps"),
        (lambda: Case(0.5, 0.1, slowdown=0), "slowdown"),
        (lambda: judged.best_depth(Case(0.5, 0.1), "sync", 0), "max_depth"),
    ],
)
def test_values_out_of_range_are_named(call, named):
    with pytest.raises(ConfigError, match=rf"^{named}: "):
        call()


# -- what the programs make of it on the virtual clock


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
    ("schedule", "c1", "depth", "judge", "width", "levels"),
    [
        ("async", 0.0, 9, 0.0, 1, 9),
        ("async", 0.3, 3, 0.0, 1, 3),
        ("async", 0.3, 4, 0.0, 1, 4),
        ("async", 0.3, 9, 0.0, 1, 4),  # the draft limits
        ("async", 0.3, 12, 2.0, 1, 4),  # a slow judge does not keep the target busy
        ("sync", 0.2, 3, 0.0, 1, 4),
        ("sync", 0.2, 3, 0.0, 2, 4),
    ],
)
def test_k1_is_depth_in_async_where_the_draft_allows_and_one_more_in_sync(
    schedule, c1, depth, judge, width, levels
):
    _, most = run(schedule, c1, depth, judge, accepted=[True] * 60, width=width)
    assert most == sum(width**level for level in range(levels))
    assert paper.parallel(schedule, c1, depth + (schedule == "sync")) == levels


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
