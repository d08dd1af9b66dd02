"""What is worth a branch: gates and their calibration, loads, forecasts; measured on the virtual
clock.
"""

import asyncio
import collections
import contextlib
import itertools
import math
import random

import pytest

from benchmarks.policies import ALPHAS, C1S, LENGTHS, Conditions, adapt, share
from lr_sglang.algorithm.policy import make_policy
from lr_sglang.algorithm.policy.confidence import Calibration
from lr_sglang.algorithm.policy.experience import RunStatistics
from lr_sglang.algorithm.policy.forecast import Conditions as Scene
from lr_sglang.algorithm.policy.forecast import (
    StepTimes,
    best_shape,
    forecast,
    furthest,
    without_prefills,
)
from lr_sglang.algorithm.policy.load import Load
from lr_sglang.algorithm.policy.turns import Forecast, Pace, Turns
from lr_sglang.api.runner import PROGRAMS
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.probes import Costs, measure_costs
from lr_sglang.frontend.dsl import run_program
from lr_sglang.modes import MODES
from lr_sglang.steps.branch import Branch, Generation
from lr_sglang.steps.step import Ending, Step
from lr_sglang.steps.tree import StepTree
from lr_sglang.tasks.task import messages
from lr_sglang.theory import reading
from lr_sglang.user_programs.request_maker import RequestMaker
from tests import FULL
from tests.simulated.clock import run_virtually
from tests.simulated.model import Model, Simulation
from tests.simulated.scheduler import Device, Job, Scheduler
from tests.simulated.times import Curve, RoleTimes
from tests.simulated.transport import simulated_roles
from tests.simulated.virtual import questions

STEP = Step("a\n\n", (1,), Ending.DELIMITER)


# -- depth


@pytest.mark.parametrize("schedule", ["async", "sync"])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_target_writes_no_further_ahead_than_the_settings_say(schedule, depth):
    look = Lookahead(schedule, depth=depth, policy="adaptive")
    with make_policy(look, StepTree(depth, 1000), RunStatistics()) as unmeasured:
        assert unmeasured.furthest == furthest(schedule, depth)


# -- seeds


def test_nodes_of_one_tree_draw_with_different_seeds():
    """Also after corrections of corrections."""
    tree, seen = StepTree(6, 1000), set()
    nodes = [tree.root]
    for _ in range(5):
        nodes = [n for node in nodes for n in (*tree.add_children(node, 2), _corrected(tree, node))]
        for node in nodes:
            assert (node.position, node.lineage) not in seen
            seen.add((node.position, node.lineage))


def _corrected(tree, node):
    node.version.step = STEP
    return tree.correct(node)


# -- the gate


def test_confidence_is_the_mean_of_the_steps_own_tokens():
    rows = [[-1.0, 5, None], [-3.0, 6, None], [-100.0, 7, None]]
    made = Generation((5, 6, 7), "stop", None, 3, None, {"output_token_logprobs": rows})
    assert made.confidence(2) == -2.0


def test_the_calibration_finds_the_curve_that_drew_the_verdicts():
    drawn = random.Random(1)
    seen = [-abs(drawn.gauss(0.2, 0.3)) for _ in range(2000)]
    samples = [(x, drawn.random() < 1 / (1 + math.exp(-2 - 4 * x))) for x in seen]
    found = Calibration.fit(samples)
    assert all(
        found.chance(x) == pytest.approx(1 / (1 + math.exp(-2 - 4 * x)), abs=0.05) for x in seen
    )
    # nothing to tell the steps apart: the share, with an acceptance and a rejection more
    alike = Calibration.fit([(-0.2, n < 12) for n in range(16)])
    assert alike.chance(-0.2) == pytest.approx(13 / 18, abs=1e-4)
    apart = Calibration.fit([(-n / 10, n < 8) for n in range(16)])
    assert 0.9 < apart.chance(0.0) < 1 and 0 < apart.chance(-1.5) < 0.1
    assert Calibration.fit([]).chance(-0.2) == 0.5


@pytest.mark.parametrize("judge", [0.0, 0.2] if FULL else [0.2])
def test_the_gate_saves_a_third_of_the_branches_and_costs_little(judge):
    case = Conditions(0.62, 0.1, steps=600, judge=judge, auc=0.8)
    speed, branches = case.run(told=True)
    gated, fewer = case.run(told=True, gate=0.075)
    assert fewer <= branches * 2 / 3
    assert gated >= 0.97 * speed


# -- loads and forecasts


class Measured:
    """A runtime that says how long requests take: one that reads holds up all others, each that
    writes slows them.
    """

    token, slowdown, reading = 0.01, 0.05, 0.002

    def __init__(self):
        self.known, self.writing, self.reads = set(), 0, asyncio.Lock()

    async def generate(self, payload, request, timeout):
        ids, tokens = tuple(payload["input_ids"]), payload["sampling_params"]["max_new_tokens"]
        begun = max((n for n in range(len(ids) + 1) if ids[:n] in self.known), default=0)
        self.known |= {ids[:n] for n in range(len(ids) + 1)}
        async with self.reads:
            await asyncio.sleep(self.reading * (len(ids) - begun))
        self.writing += 1
        for _ in range(tokens):
            await asyncio.sleep(self.token * (1 + self.slowdown * (self.writing - 1)))
        self.writing -= 1


def test_what_requests_cost_is_measured_at_start():
    costs = run_virtually(measure_costs(Measured()))
    assert costs.token == pytest.approx(Measured.token)
    assert costs.slowdown == pytest.approx(Measured.slowdown, rel=0.02)
    assert costs.reading == pytest.approx(Measured.reading, rel=0.1)


def test_costs_that_are_known_decide_until_there_is_much_else():
    load = Load(Costs(0.1, slowdown=0.1, reading=0.01))
    for n in range(0, 200, 10):
        marks = [load.begin(n) for _ in range(5)]
        for mark in marks:  # three beyond two answers read
            load.end(n + 0.14 * 10 + (0.01 * 10 + 0.1) * 3, mark, 10, alone=2)
    base, more = load.line()
    assert base + more == pytest.approx(0.1)
    assert more == pytest.approx(0.01)


def test_a_branch_of_a_few_tokens_says_little_of_the_time_of_a_token():
    load = Load()
    for n in range(4):
        load.end(n + 0.4, load.begin(n), 20)
    load.end(10.5, load.begin(10.0), 1)
    assert load.seconds_per_token(1) < 0.03


@pytest.mark.parametrize(("beside", "learns"), [("written", True), ("portions", False)])
def test_the_time_of_a_token_is_not_learnt_beside_reads(beside, learns):
    known, now = RunStatistics(), [0.0]
    known.writing["another answer"] = beside
    look = Lookahead(policy="adaptive", depth=2)
    with make_policy(look, StepTree(2, 400), known, lambda: now[0]) as policy:
        branch = Branch("target", 3)
        policy.begun(branch)
        now[0] = 4.0
        policy.ended(branch, 20)
    assert known.load("target").known == learns


def test_a_target_with_a_token_layer_has_no_forecast_until_it_wrote_alone():
    """The random tokens of the start are none that its layer would guess."""
    known = RunStatistics(answers=8, layered=True)
    known.load("target").costs = Costs(0.02, 0.0, 0.0, prefill=0.04)
    known.load("draft").costs = Costs(0.005, 0.0, 0.0)
    known.load("target").end(1.0, known.load("target").begin(0.0), 20)
    conditions = known.conditions("async", 0.9)
    assert conditions is not None
    assert known.forecasts(conditions, best_shape(conditions, 4, 1))["alone"] is None


def test_auto_notices_a_change_in_answers_of_a_few_steps():
    """They are shorter than the steps between two drafts that are only made to learn from them."""
    known, accepted = RunStatistics(), []

    async def answers(alpha, count):
        simulation = Simulation(Model(alpha=(alpha,), steps=6, tokens=14), 0.45, 0.06, 0.03)
        roles = simulated_roles(simulation)
        maker = RequestMaker(roles, "paper", known)
        look = MODES["auto"].lookahead(Lookahead(depth=5))
        for asked in questions(count):
            request = maker.make(MODES["auto"], look, Sampling(seed=1), Limits(), question=asked.id)
            await run_program(
                PROGRAMS["lookahead"], messages(asked.question), request, backend=roles["target"]
            )
            accepted.append(request.trace.accepted)

    async def all_answers():
        await answers(0.0, 20)
        assert not any(accepted[-10:]) and known.alpha() < 0.2
        await answers(0.95, 100)

    run_virtually(all_answers())
    assert sum(accepted[-10:]) > 30


def scene(alpha, answers, slowdown=0.02, c1=0.1, schedule="async"):
    target, draft = (StepTimes(s * (1 - slowdown), s * slowdown) for s in (1.0, c1))
    return Scene(schedule, alpha, alpha, target, draft, 0.05, answers)


def test_lookahead_gives_way_to_load():
    depths = [best_shape(scene(0.6, answers), 12, 1).depth for answers in (1, 4, 16, 128)]
    assert depths == sorted(depths, reverse=True)
    assert depths[0] >= 4
    assert best_shape(scene(0.3, 128), 12, 3).depth == 0
    assert best_shape(scene(0.9, 1, c1=1.2), 12, 1).depth == 0, "a draft slower than the target"


FORECASTS = list(itertools.product((0.5, 0.9), (0.05, 0.2), (2, 6), (1,)))


@pytest.mark.parametrize(("alpha", "c1", "depth", "width"), FORECASTS if FULL else FORECASTS[::3])
def test_the_forecast_is_what_comes_of_it(alpha, c1, depth, width):
    case = Conditions(alpha, c1, 2, steps=300 if FULL else 150, slowdown=0.02)
    pace = forecast(scene(alpha, 2, c1=c1), depth, width) * (1 + 0.02)
    assert case.run(told=True, depth=depth, width=width)[0] == pytest.approx(pace, rel=0.1)


GRID = [(2, 0.3, 0.2), (8, 0.9, 0.1)]
if FULL:
    GRID = list(itertools.product(LENGTHS, ALPHAS, C1S))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("load", "alpha", "c1"), GRID)
def test_the_adaptive_policy_is_about_as_good_as_the_best_fixed_one(load, alpha, c1):
    one = adapt(load, alpha, c1, steps=3 * LENGTHS[load] if FULL else None)
    assert one.found >= 0.95 * one.fixed, one
    assert one.found >= 0.98, one


def steps_in_turns(turns, paces, forecasts, steps=2000, answers=1, scatter=0.0):
    """Seconds of steps of ten tokens, each at the tokens per second of its way, and the steps of
    each way.
    """
    spent, taken, draw = 0.0, collections.Counter[str](), random.Random(1)
    for _ in range(steps):
        turns.choose(forecasts, answers=answers)
        seconds = 10 / paces[turns.way] * draw.lognormvariate(-(scatter**2) / 2, scatter)
        taken[turns.way] += 1
        spent += seconds
        turns.add(turns.way, turns.number, 10, seconds, answers=answers)
    return spent, taken


@pytest.mark.parametrize("forecast", [10, 16])
@pytest.mark.parametrize("answers", [1, 8])
@pytest.mark.parametrize(
    ("ahead", "alone"), [(10, 14), (10, 25), (14, 10), (10, 10.5), (30, 10), (5, 14)]
)
def test_the_faster_way_is_found_and_trials_cost_little(ahead, alone, answers, forecast):
    """Whatever was expected of them; in steps whose times scatter."""
    paces = {"alone": alone, "written": ahead}
    forecasts = {"alone": Forecast(alone, 0.1), "written": Forecast(forecast)}
    steps = 400 * answers
    best = steps * 10 / max(ahead, alone)
    turns = Turns()
    assert steps_in_turns(turns, paces, forecasts, steps, answers, 0.6)[0] <= 1.1 * best
    assert steps_in_turns(turns, paces, forecasts, steps, answers, 0.6)[0] <= 1.05 * best, "later"


def test_a_way_that_has_become_slower_is_left():
    forecasts = {"alone": Forecast(10, 0.1), "written": Forecast(16)}
    turns = Turns()
    steps_in_turns(turns, {"alone": 14, "written": 25}, forecasts, 400)
    changed = {"alone": 14, "written": 8}
    assert steps_in_turns(turns, changed, forecasts, 400)[0] <= 1.5 * 400 * 10 / 14
    assert steps_in_turns(turns, changed, forecasts, 400)[0] <= 1.1 * 400 * 10 / 14


def test_of_many_ways_the_fastest_gets_nearly_all_steps():
    turns, paces = Turns(), {"alone": 10, "portions": 7, "written": 14, "read": 25}
    forecasts = {"alone": Forecast(10, 0.1), "portions": Forecast(12), "read": None}
    forecasts["written"] = Forecast(20)
    _, taken = steps_in_turns(turns, paces, forecasts)
    assert taken["read"] > 0.95 * 2000, taken
    turns.choose({"alone": Forecast(10), "written": Forecast(20)})
    assert turns.way == "written", "a way that can no longer be used is left at once"


def test_a_way_that_cannot_be_the_fastest_is_never_tried():
    paces = {"alone": 10, "written": 5}
    forecasts = {"alone": Forecast(10, 0.1), "written": Forecast(7)}
    assert steps_in_turns(Turns(), paces, forecasts, 200)[1]["written"] == 0


def test_what_is_written_counts_for_the_turns_of_its_time():
    """Also of a step that began before the way was changed, and that is slow because others have
    changed theirs.
    """
    turns = Turns()
    both = {"alone": Forecast(10), "written": Forecast(20)}
    turns.choose(both)
    turns.note(0.0, 1.0)
    turns.share(0.0, 10.0, 50, steps=5)
    turns.choose(both)
    assert turns.way == "alone"
    turns.note(10.0, 1.0)
    left = turns.left
    turns.share(8.0, 12.0, 40)
    assert turns.pace("written") == pytest.approx(70 / 12, rel=0.01)  # the first has faded
    assert turns.pace("alone") == pytest.approx(10) and turns.left == left - 0.5
    turns.note(12.0, 0.25)
    turns.note(13.0, 0.25)
    turns.share(12.0, 16.0, 10)
    assert turns.pace("alone") == pytest.approx((20 + 10 / 4) / 3), "where ways are mixed"


def test_where_one_of_eight_answers_ends_the_others_go_on_as_before():
    known = RunStatistics()
    assert known.turns(8) is known.turns(7) is known.turns(5)
    assert known.turns(4) is known.turns(3) is not known.turns(8)
    assert len({id(known.turns(n)) for n in (1, 2, 4, 8, 9)}) == 5


def test_the_time_of_a_token_follows_what_the_target_writes_alone():
    """Which costs more than random tokens after a short prompt did at start."""
    known = RunStatistics(answers=8)
    known.load("target").costs = Costs(0.03, 0.1)
    assert known.token_seconds() == pytest.approx(0.051)
    turns = known.turns(8)
    turns.choose({"alone": Forecast(20, 0.1)}, answers=8)
    for _ in range(100):
        turns.add("alone", turns.number, 30, 3.0, answers=8)
    assert known.token_seconds() == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("answers", [1, 4, 8, 16])
def test_prefills_that_come_during_one_share_the_next(answers):
    """Requests of several answers, one after another, as SGLang's scheduler runs them."""
    a_pass, prefill, passes = 0.02, 0.04, 40
    times = RoleTimes(Curve(((1, a_pass),)), prefill)

    async def seconds():
        loop = asyncio.get_running_loop()
        scheduler, lengths, steps = Scheduler(times, Device()), random.Random(1), 0

        async def answer(number):
            nonlocal steps
            while steps < 60 * answers:
                tokens = 1 + lengths.randint(passes // 2, 3 * passes // 2)
                job = Job(f"{number} {steps}", 1, (1,) * tokens, tokens, loop.create_future())
                scheduler.add(job)
                await job.done
                steps += 1

        _, running = await asyncio.wait(
            [asyncio.create_task(answer(number)) for number in range(answers)],
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in running:
            task.cancel()
        return loop.time() * answers / steps

    target = StepTimes(a_pass * passes, 0.0, 0.0, prefill)
    found = run_virtually(seconds())
    assert target.ahead(answers, answers) == pytest.approx(found, rel=0.1)
    busy = without_prefills(target.ahead(answers, answers), answers * prefill, answers)
    assert busy == pytest.approx(target.alone(answers))


def test_a_turn_ends_at_once_where_another_way_is_much_faster_by_what_is_known_now():
    turns = Turns()
    for pace, way in ((20, "portions"), (9, "portions"), (4, "alone")):
        turns.choose({"alone": Forecast(10), "portions": Forecast(pace)})
        assert turns.way == way


def test_forecasts_for_another_number_of_answers_are_corrected_by_what_was_measured():
    known = Turns()
    forecasts = {"alone": Forecast(10, 0.1), "written": Forecast(20)}
    known.choose(forecasts)
    for _ in range(3):
        known.add("written", known.number, 50, 10.0, steps=5)
        known.choose(forecasts)
    for turns, way in ((Turns(nearest=known), "alone"), (Turns(), "written")):
        turns.choose({"alone": Forecast(12, 0.1), "written": Forecast(30)})
        assert turns.way == way


def test_steps_that_scatter_leave_a_larger_error():
    even, uneven = Pace(), Pace()
    for n in range(40):
        even.add(10, 1.0)
        uneven.add(10, 1.0 + 0.8 * (-1) ** n)
    assert even.value == pytest.approx(uneven.value)
    assert even.error < uneven.error / 2 < even.value / 10
    few, before = Pace(), even.error
    few.add(10, 1.0)
    even.fade(0.1)
    assert few.error > even.error > before


def test_what_a_read_takes_follows_from_a_prefill_that_was_measured():
    known = RunStatistics(answers=1)
    typical = known.read_times()
    known.load("target").costs = Costs(0.0178, 0.0, 0.0, prefill=0.043)
    assert known.read_times().read == pytest.approx(0.043 / 0.0178) != typical.read
    for _ in range(100):
        known.reads.compared(3, True)  # an agreement of .75
    assert known.reads.gain(known.read_times()) < 1.2 < reading.gain(0.75), (
        "with times of a CPU it is more"
    )


@pytest.mark.parametrize(("verdicts", "drafting"), [(3, 8), (18, 0)])
def test_several_answers_draft_on_while_looking_ahead_may_pay(verdicts, drafting):
    """Of .6 accepted steps it does not pay; but few verdicts are known at first."""
    known = RunStatistics(probes=2)
    known.load("target").costs = Costs(0.0178, 0.0, 0.00005, prefill=0.039)
    known.tokens.add(40)
    for number in range(verdicts):
        known.first.add(number % 3 != 0)
    look = Lookahead(policy="adaptive", depth=6)
    with contextlib.ExitStack() as answers:
        policies = [
            answers.enter_context(make_policy(look, StepTree(6, 400), known)) for _ in range(8)
        ]
        depths = [one.choice.depth for one in policies]
        assert sum(map(bool, depths)) == drafting
        assert {one.way for one in policies} == {"written" if drafting else "alone"}


def test_the_way_of_an_answer_is_that_of_its_own_turn_whatever_another_one_chooses():
    known = RunStatistics(probes=2)
    known.load("target").costs = Costs(0.0178, 0.0, 0.00005, prefill=0.039)
    known.tokens.add(40)
    known.first.add(True, 100)
    known.reads.can_read = True
    known.turns(1).way = "read"
    known.turns(1).left = 5.0
    look = Lookahead(policy="adaptive", depth=6)
    with make_policy(look, StepTree(6, 400), known) as first:
        assert first.way == "read" and first.choice.depth
        known.reads.can_read = False
        with make_policy(look, StepTree(6, 400), known) as second:
            assert second.way == "written" and first.way == "read"


# -- slots that are shared


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 32] if FULL else [8])
def test_shared_slots_are_as_good_as_the_best_split_and_nobody_is_held_up(count):
    made = share(count, steps=80) if FULL else share(count, steps=25, tried=(1, 2, 6))
    assert made.seconds <= min(made.split.values()) / 0.95
    assert made.slowest < 1.1
