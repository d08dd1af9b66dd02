"""The theory against the real programs, which run on a simulated clock."""

import asyncio
import itertools
import math
import random

import pytest

from lr_sglang.programs.lookahead import asynchronous, synchronous
from lr_sglang.theory.judged import answer_time, speedup
from lr_sglang.theory.paper import f_async, f_sync, k1_of, parallel, s1, s2
from tests.clocked import Clocked

PROGRAMS = {"sync": synchronous, "async": asynchronous}
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


def run(schedule, accepts, c1, depth, judge=0.0, steps=1000, width=1, lasts=lambda: 1.0):
    answer = Clocked(accepts, c1, depth, judge, steps, width, lasts)

    async def write():
        while not answer.ended:
            await PROGRAMS[schedule](answer)

    asyncio.run(write())
    assert len(answer.kept) == steps
    return answer


def ends(schedule, c1, depth, judge):
    """When the program ends a cycle whose first refused step is number x, for all x."""
    if schedule == "sync":
        return [
            run("sync", lambda p, x=x: p != x, c1, depth, judge, depth + 2).kept[x]
            for x in range(depth + 1)
        ]
    kept = run("async", lambda p: True, c1, depth, judge, LONGEST).kept
    # A refusal takes as long as an acceptance; a few are looked at, for all would take their time.
    for x in (0, 1, depth, depth + 1, 2 * depth + 1):
        assert run("async", lambda p, x=x: p != x, c1, depth, judge, 3 * depth + 3).kept[
            x
        ] == pytest.approx(kept[x])
    return kept


@pytest.mark.parametrize("schedule", PROGRAMS)
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
        assert steps / taken == pytest.approx(papers(alpha, c1, k1_of(schedule, depth)), rel=1e-5)


@pytest.mark.parametrize(("alpha", "c1", "depth", "judge"), CASES[1:3])
@pytest.mark.parametrize("schedule", PROGRAMS)
def test_a_long_answer_drawn_at_random(schedule, alpha, c1, depth, judge):
    """So few steps are sure to 1 %, one standard deviation."""
    draw, steps = random.Random(0), 3000
    taken = run(schedule, lambda position: draw.random() < alpha, c1, depth, judge, steps).now
    assert steps / taken == pytest.approx(speedup(schedule, alpha, c1, depth, judge), rel=0.03)


@pytest.mark.parametrize("schedule", PROGRAMS)
@pytest.mark.parametrize(("alpha", "c1", "depth", "judge"), CASES)
def test_a_short_answer_takes_as_long_as_expected(schedule, alpha, c1, depth, judge):
    """Exact: every pattern of acceptances is run, and weighed with its probability."""
    steps, expected = 6, 0.0
    for pattern in itertools.product((True, False), repeat=steps):
        weight = alpha ** sum(pattern) * (1 - alpha) ** (steps - sum(pattern))
        expected += weight * run(schedule, pattern.__getitem__, c1, depth, judge, steps).now
    assert answer_time(schedule, alpha, c1, depth, judge, steps) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("c1", "depth", "formula"), [(0.3, 3, "S2"), (0.3, 4, "S1"), (0.3, 9, "S1")]
)
def test_k1_is_depth_in_async_and_the_draft_limits_from_there(c1, depth, formula):
    answer = run("async", lambda position: True, c1, depth, steps=300)
    assert answer.most == parallel("async", c1, depth) == min(depth, 4)
    papers = s1(1, c1) if formula == "S1" else s2(1, c1, depth)
    assert 300 / answer.now == pytest.approx(papers, rel=0.01)


@pytest.mark.parametrize("width", [1, 2])
def test_k1_is_depth_plus_one_in_sync(width):
    answer = run("sync", lambda position: True, 0.2, 3, steps=8, width=width)
    levels = parallel("sync", 0.2, k1_of("sync", 3))
    assert answer.most == sum(width**level for level in range(levels))


@pytest.mark.parametrize(("judge", "most"), [(0.0, 4), (2.0, 4)])
def test_a_slow_judge_does_not_keep_the_target_busy(judge, most):
    assert run("async", lambda position: True, 0.3, 12, judge, steps=60).most == most


def test_a_draft_as_slow_as_the_target_gains_nothing():
    """It is always late."""
    assert run("async", lambda position: True, 1.01, 4, steps=20).now == pytest.approx(20)


@pytest.mark.parametrize(("schedule", "low", "high"), [("sync", 0.6, 0.8), ("async", 0.9, 1.0)])
def test_steps_of_unequal_length_gain_less(schedule, low, high):
    """The paper's are equal. These vary by half their mean: a batch waits for its longest, an order
    for its first.
    """
    draw, steps = random.Random(0), 2000
    sigma = math.log(1 + 0.5**2) ** 0.5

    def lasts():
        return draw.lognormvariate(-(sigma**2) / 2, sigma)

    taken = run(
        schedule, lambda position: draw.random() < 0.63, 0.1, 6, 0.1, steps, lasts=lasts
    ).now
    share = steps / taken / speedup(schedule, 0.63, 0.1, 6, 0.1)
    assert low < share < high
