"""The paper's formulas, ours, and the planner: against what the paper prints, limits and each
other.
"""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lr_sglang.errors import ConfigError
from lr_sglang.theory import judged, paper
from lr_sglang.theory.judged import Case

SCHEDULES = ("sync", "async")
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


def test_target_steps_at_once():
    assert paper.parallel("async", 0.0, 9) == paper.parallel("sync", 0.1, 9) == 9
    assert paper.parallel("async", 0.3, 9) == 4


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
