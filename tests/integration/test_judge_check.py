"""As answers are made, the judge is shown steps that differ: on the virtual clock, over simulated
runtimes.
"""

import random

import pytest

from lr_sglang.algorithm.policy import RunStatistics
from lr_sglang.algorithm.verification import LAST
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.frontend.dsl import run_program
from lr_sglang.modes import MODES
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps import judge_check
from lr_sglang.steps.judge_check import JudgeCheck, JudgeChecks, read_alike
from lr_sglang.steps.tree import Verdict
from lr_sglang.tasks.task import messages
from lr_sglang.verifiers.judge import Judge
from lr_sglang.verifiers.requests import RequestMaker
from tests import FULL
from tests.simulated.clock import run_virtually
from tests.simulated.model import Model, Writer
from tests.simulated.simulation import Simulation
from tests.simulated.transport import simulated_roles


class Nonsense(Writer):
    """A judge that accepts 70 % of everything."""

    def __init__(self, model, seed):
        super().__init__(model)
        self.rng = random.Random(seed)

    def judge(self, prompt):
        return "aligned" if self.rng.random() < 0.7 else "unaligned"


def deployment(simulation, writer=None):
    """Simulated runtimes whose judge is taken for a real one, and what it has been heard to warn
    of.
    """
    roles, warned = simulated_roles(simulation, writer), []
    roles["judge"].checks = JudgeChecks()
    roles["judge"].checks.warn = warned.append
    return roles, warned


async def answers(roles, look, count=1):
    """Makes answers one after the other; returns their requests."""
    known, jobs = RunStatistics(), []
    maker = RequestMaker(roles, "paper", known)
    for n in range(count):
        jobs.append(maker.make(MODES["lookahead"], look, Sampling(), Limits(), question=str(n)))
        await run_program(
            lookahead, messages(f"Simulated question {n}?"), jobs[-1], backend=roles["target"]
        )
    return jobs


def once_in(monkeypatch, verdicts):
    """One verdict in so many may be on a pair of steps that differ."""
    monkeypatch.setattr(judge_check, "SHARE", 1 / verdicts)


def test_a_good_judge_is_never_distrusted(monkeypatch):
    once_in(monkeypatch, 2)
    count = 200 if FULL else 50
    roles, warned = deployment(Simulation(Model(steps=6)))
    jobs = run_virtually(answers(roles, Lookahead(), count))
    found = jobs[-1].check.found
    assert found.accepted == 0 and found.asked > count and not warned
    assert all(job.drafts for job in jobs)


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_it_takes_two_percent_of_the_judges_time_after_all_other_work_and_no_answer_waits_for_it(
    schedule, monkeypatch
):
    def run(most):
        roles, _ = deployment(Simulation(Model(steps=300)))
        enter, orders = roles["judge"].pool.enter, []

        async def entered(request, order=0):
            orders.append(order)
            await enter(request, order)

        monkeypatch.setattr(roles["judge"].pool, "enter", entered)
        (job,) = run_virtually(answers(roles, Lookahead(schedule, max_false_accepts=most)))
        return job, orders

    (job, orders), (without, _) = run(0.35), run(1)
    check, aside = job.check, sum(order == LAST for order in orders)
    assert 0 < check.checking <= 0.02 * check.judging and check.found.asked == aside >= 4
    assert all(order == LAST or order < 10 for order in orders)
    assert job.record.text == without.record.text
    assert job.record.seconds == pytest.approx(without.record.seconds, rel=1e-12)
    judged = [branch for branch in job.record.branches if branch.role == "judge"]
    assert len(judged) == len(orders) and all(branch.outcome and branch.ended for branch in judged)
    assert without.check is None


class Own(Judge):
    """A verifier of one's own that asks the judge, unless it is told not to."""

    name = "own"
    argument = ""

    @classmethod
    def make(cls, setup):
        made = super().make(setup)
        made.argument = setup.argument
        return made

    def verify(self, inquiry):
        return Verdict(True, self.name) if self.argument else super().verify(inquiry)


@pytest.mark.parametrize(
    "verifier", ["judge", "cascade:likelihood,judge", "Own", "Own:never", "oracle:0.7"]
)
def test_a_verifier_that_asks_the_judge_is_checked_whosever_it_is(verifier, monkeypatch, tmp_path):
    once_in(monkeypatch, 2)
    if own := verifier.startswith("Own"):
        (tmp_path / "own.py").write_text("from tests.integration.test_judge_check import Own\n")
        verifier = f"{tmp_path}/own.py:{verifier}"
    model = Model(steps=75)
    roles, warned = deployment(Simulation(model), Nonsense(model, 1))
    look = Lookahead(verifier=verifier)

    async def at_start_and_then():
        await RequestMaker(roles, "paper").check_judge(look)
        began = roles["judge"].checks.worst()
        roles["judge"].checks.made.clear()
        return began, (await answers(roles, look))[0]

    began, job = run_virtually(at_start_and_then())
    if verifier.startswith("oracle") or verifier.endswith("never"):
        assert began is None and job.drafts and not warned
    else:
        assert began.asked == 20 and not job.drafts and len(warned) == 2
        assert own == ("own.py" in warned[0])


def test_pairs_that_read_alike_are_left_out():
    assert read_alike(
        "So the bill is 24 + 24 = 48 dollars.\n\n", "The bill: 24 + 24 = 48 dollars\n\n"
    )
    assert read_alike("", "Anything.") and read_alike("So  it is", "so it\nIS")
    assert not read_alike("Hugo earned 44 dollars.", "3 mugs at 8 dollars each cost 24.")
    assert not read_alike("先算每天的收入。", "所以答案是四十二。")


def test_nothing_is_shown_before_the_judge_was_asked_for_an_answer():
    check = JudgeCheck("own", print)
    assert not any(check.judged(0.1) for _ in range(100))
    check.asked_judge(0.35)
    assert check.judged(0.1)
    check.showing = True
    assert not check.judged(0.1)


def test_what_a_verifier_accepted_without_the_judge_counts_once_it_asks_the_judge():
    warned = []
    check = JudgeCheck("own", warned.append)
    check.add([True] * 20, 0.35)
    assert check.trusted(0.35) and not warned and check.known is None
    for _ in range(2):
        check.asked_judge(0.35)
        check.add([True], 0.35)
    assert (
        not check.trusted(0.35)
        and len(warned) == 1
        and "verifier own accepted 20 of 20" in warned[0]
    )
