"""Estimates and their intervals; the accounting of time; a made-up run is recovered."""

import math
from itertools import pairwise

import numpy as np
import pytest

from lr_sglang.engine.branch import Branch
from lr_sglang.engine.generation import waits
from lr_sglang.results import accounting, collection, report
from lr_sglang.results import statistics as st
from lr_sglang.results.record import Row, of_branch
from lr_sglang.theory.shares import wilson
from tests import FULL, synthetic

REPETITIONS = 200 if FULL else 20


def collected(records):
    """As ``collection.read`` sorts them, without a folder."""
    groups = {}
    for record in records:
        collection.group_of(record, 1, groups).rows.append(Row(record))
    return collection.Collection(collection.labelled(list(groups.values())), [], [])


def measured(records, mode="lookahead"):
    found = collected(records)
    group = next(g for g in found.groups if g.mode == mode)
    return found, group, report.measure(found, group)


# -- estimates


def test_one_sample_a_question_is_wilsons_interval():
    estimate = st.share({n: (n < 7, 1) for n in range(10)})
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.7, *wilson(7, 10)))
    assert (estimate.samples, estimate.questions) == (10, 10)


def test_samples_of_one_question_are_worth_less_than_as_many_questions():
    """Eight samples that all go the same way tell no more than one."""
    alike = st.share({n: (8 * (n % 2), 8) for n in range(40)})
    apart = st.share(dict.fromkeys(range(40), (4, 8)))
    alone = st.share({n: (n % 2, 1) for n in range(40)})
    assert alike.value == apart.value == 0.5
    assert alike.high - alike.low == pytest.approx(alone.high - alone.low, rel=0.15)
    assert apart.high - apart.low < 0.5 * (alike.high - alike.low)


@pytest.mark.parametrize("questions", [1, 7, 8, 200])
def test_fewer_than_eight_questions_have_no_interval(questions):
    chance = np.random.default_rng(questions)
    columns = [chance.lognormal(0, 1, questions), chance.lognormal(0, 1, questions)]
    ratio = st.product(columns, [1, -1], questions)
    assert ratio.value == pytest.approx(columns[0].sum() / columns[1].sum())
    rates = st.share({n: (n % 3, 4) for n in range(questions)})
    alike = st.share(dict.fromkeys(range(questions), (1, 1)))
    accuracy = st.difference({n: [0, n % 2] for n in range(questions)})
    for one in (ratio, rates, alike, accuracy):
        if questions < 8:
            assert one.low is one.high is None
        else:
            assert -1 < one.low <= one.value <= one.high < math.inf
            assert one.low < one.high
    assert questions >= 8 or accuracy.verdict == "open"


def test_an_interval_is_no_nan_where_a_resample_may_have_nothing_to_divide_by():
    table = [[0.0] * 8 + [3.0], [0.0] * 7 + [1.0, 1.0]]
    estimate = st.product(table, [1, -1], 9)
    assert estimate.value == pytest.approx(1.5)
    assert 0 <= estimate.low <= estimate.value <= estimate.high < math.inf


def test_nothing_is_no_estimate():
    assert st.share({}) is None
    assert st.share({"q": (0, 0)}) is None
    assert st.product([[], []], [1, -1], 0) is None
    assert st.product([[0.0, 0.0], [1.0, 2.0]], [1, -1], 2) is None
    assert st.difference({}) is None


@pytest.mark.parametrize("apart", [1e-2, 1e-3, 1e-5, 0.0])
def test_one_slow_question_among_equal_ones_is_no_infinite_interval(apart):
    """As the first question of a run with random weights, where all the others take the same."""
    seconds = 1 + apart * np.random.default_rng(0).standard_normal(12)
    seconds[0] = 2
    estimate = st.product([seconds, np.ones(12)], [1, -1], 12)
    assert 0.8 < estimate.low < estimate.value < estimate.high < 1.5


# -- non-inferiority


@pytest.mark.parametrize(
    ("each", "questions", "verdict"),
    [
        ([0, 0], 10, "open"),  # few questions prove little, however equal
        ([0, 0], 400, "kept"),
        ([-1, 0], 100, "worse"),
        ([1, 1], 20, "kept"),
    ],
)
def test_quality_is_kept_only_if_the_whole_interval_says_so(each, questions, verdict):
    found = st.difference(dict.fromkeys(range(questions), each))
    assert found.verdict == verdict
    assert found.low < found.high


# -- a made-up run is recovered

TRUTH = synthetic.Truth(alpha=0.6, c1=0.15, judge=0.03, accuracy=0.8, loss=0.04, steps=8)


@pytest.fixture(scope="module")
def expected_speed():
    """What the made-up run gains in the long run, from many more answers."""
    sums = {mode: [0.0, 0.0] for mode in ("autoregressive", "lookahead")}
    for one in synthetic.run(TRUTH, questions=1500, samples=1, seed=10**6):
        sums[one["mode"]][0] += one["tokens"]["used"]
        sums[one["mode"]][1] += one["seconds"]
    (few, slow), (many, fast) = sums.values()
    return many / fast / (few / slow)


def test_known_numbers_are_recovered_within_their_intervals(expected_speed):
    """In 95 % of the repetitions, each of five figures. An interval of 95 % holds the truth 190
    times of 200, give or take 3.1: allowed are 2.6 standard deviations less, for the five together
    a chance of failure of about 2 %.
    """
    hits = dict.fromkeys(("alpha", "c1", "judge", "accuracy", "speed"), 0)
    for seed in range(REPETITIONS):
        _, _, of = measured(synthetic.run(TRUTH, questions=30, samples=2, seed=seed))
        hits["alpha"] += of.alpha.holds(TRUTH.alpha)
        hits["c1"] += of.c1.holds(TRUTH.c1)
        hits["judge"] += abs(of.judge_seconds.value - TRUTH.judge) < 1e-6
        hits["accuracy"] += of.difference.holds(-TRUTH.loss)
        hits["speed"] += of.speed.tokens.holds(expected_speed)
    least = 0.95 * REPETITIONS - 2.6 * math.sqrt(0.95 * 0.05 * REPETITIONS)
    assert all(count >= least for count in hits.values()), (hits, REPETITIONS)


def test_what_the_formulas_expect_of_it_is_near():
    records = synthetic.run(TRUTH, questions=200, samples=1, seed=3)
    _, _, of = measured(records)
    # the rest is uneven steps
    assert of.expected.speedup == pytest.approx(of.speed.tokens.value, rel=0.06)
    assert of.expected.speedup > of.speed.tokens.value
    assert of.expected.c1 == pytest.approx(0.15, abs=0.01)
    for record in records:
        if record["config"]["lookahead"]:
            record["config"]["lookahead"]["policy"] = "adaptive"
    assert measured(records)[2].expected is None, "there is no depth to reckon with"


# -- where the time went


def test_the_parts_of_every_answer_sum_to_its_time():
    for record in synthetic.run(TRUTH, questions=20, samples=2):
        parts = accounting.parts(record)
        assert sum(parts.values()) == pytest.approx(record["seconds"], rel=0.02)
        assert (
            parts["controller"] <= 0.02 * record["seconds"]
        )  # it took no time, and nothing is left to it
        pieces = accounting.critical_path(record)
        assert pieces[0].start == 0 and pieces[-1].end == record["seconds"]
        assert all(a.end == pytest.approx(b.start) for a, b in pairwise(pieces))


def answer(steps, branches, seconds):
    return {"steps": steps, "branches": branches, "seconds": seconds, "error": None}


def made(position, source, outcome, seconds, by="judge", judge=0.0, accepted=None):
    step = synthetic.kept(position, 1.0, source, outcome, seconds, 9, judge, accepted)
    if step["verdicts"]:
        step["verdicts"][0]["by"] = by
    return step


def test_a_draft_that_everything_waits_for_is_on_the_path():
    """Two steps at depth 2: the second target step starts when the first draft is there, and is
    what comes last.
    """
    branches = [
        synthetic.branch("draft", 0, 0.0, 0.3, "accepted", 9),
        synthetic.branch("target", 0, 0.0, 1.0, "accepted", 9),
        synthetic.branch("judge", 0, 1.0, 1.1, "accepted", 1),
        synthetic.branch("draft", 1, 0.3, 0.6, "accepted", 9),
        synthetic.branch("target", 1, 0.3, 1.3, "accepted", 9),
        synthetic.branch("judge", 1, 1.3, 1.4, "accepted", 1),
    ]
    steps = [
        made(0, "draft", "accepted", 1.1, judge=0.1, accepted=True),
        made(1, "draft", "accepted", 1.4, judge=0.1, accepted=True),
    ]
    parts = accounting.parts(answer(steps, branches, 1.4))
    assert {p: round(s, 6) for p, s in parts.items() if s} == {
        "draft": 0.3,
        "target": 1.0,
        "judge": 0.1,
    }


def test_the_step_after_a_late_draft_counts_as_late():
    branches = [
        synthetic.branch("draft", 0, 0.0, 1.02, "rejected", 9),
        synthetic.branch("target", 0, 0.0, 1.0, "corrected", 9),
        synthetic.branch("target", 1, 1.0, 2.0, "bonus", 9),
    ]
    steps = [
        made(0, "target", "corrected", 1.0, by="late", accepted=False),
        made(1, "target", "bonus", 2.0),
    ]
    parts = accounting.parts(answer(steps, branches, 2.0))
    assert {p: round(s, 6) for p, s in parts.items() if s} == {"target": 1.0, "late": 1.0}


def test_queueing_and_prefill_are_told_apart_where_the_runtime_reports_them():
    branch = {**synthetic.branch("target", 0, 0.1, 2.0, "bonus", 9), "queued": 0.4, "prefill": 0.5}
    record = answer([made(0, "target", "written", 2.1)], [branch], 2.1)
    parts = {p: round(s, 6) for p, s in accounting.parts(record).items() if s}
    assert parts == {"target": 1.0, "queue": 0.4, "prefill": 0.5, "controller": 0.2}
    assert accounting.critical_path(record)


def test_what_a_runtime_says_of_its_waits_is_read_and_recorded():
    meta = {"queue_time": 0.25, "forward_entry_time": 1000.5, "prefill_finished_time": 1000.75}
    assert waits(meta) == (0.25, 0.25)
    assert waits({}) == waits({"queue_time": None, "forward_entry_time": 5.0}) == (None, None)
    assert waits({"queue_time": True, "forward_entry_time": 9.0, "prefill_finished_time": 8.0}) == (
        None,
        None,
    )
    known, unknown = Branch("target", 0, queued=0.25, prefill=0.0), Branch("target", 0)
    assert {"queued": 0.25, "prefill": 0.0}.items() <= of_branch(known).items()
    assert not {"queued", "prefill"} & of_branch(unknown).keys()


def test_an_answer_without_a_step_has_no_path():
    assert accounting.critical_path(answer([], [], 0.0)) == []
