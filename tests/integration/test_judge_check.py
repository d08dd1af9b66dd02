"""Before the first answer the judge is shown steps that differ: over simulated runtimes."""

import random

import pytest

from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.modes import MODES
from lr_sglang.steps.judge_check import JudgeCheck, JudgeChecks
from lr_sglang.steps.tree import Verdict
from lr_sglang.verifiers.judge import Judge
from lr_sglang.verifiers.requests import RequestMaker
from tests.simulated.clock import run_virtually
from tests.simulated.model import Model, Simulation, Writer
from tests.simulated.transport import simulated_roles


class Nonsense(Writer):
    """A judge that accepts 70 % of everything."""

    def __init__(self, model, seed):
        super().__init__(model)
        self.rng = random.Random(seed)

    def judge(self, prompt):
        return "aligned" if self.rng.random() < 0.7 else "unaligned"


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
def test_a_verifier_that_asks_the_judge_is_checked_whosever_it_is(verifier, tmp_path):
    if own := verifier.startswith("Own"):
        (tmp_path / "own.py").write_text("from tests.integration.test_judge_check import Own\n")
        verifier = f"{tmp_path}/own.py:{verifier}"
    model, warned = Model(steps=75), []
    roles = simulated_roles(Simulation(model), Nonsense(model, 1))
    roles["judge"].checks = JudgeChecks(warn=warned.append)
    look, maker = Lookahead(verifier=verifier), RequestMaker(roles, "paper")
    run_virtually(maker.check_judge(look))
    job, found = maker.make(MODES["lookahead"], look, Sampling(), Limits()), roles["judge"].checks
    if verifier.startswith("oracle") or verifier.endswith("never"):
        assert found.worst() is None and job.drafts and not warned
    else:
        assert found.worst().asked == 20 and not job.drafts and len(warned) == 1
        assert own == ("own.py" in warned[0])


def test_what_a_verifier_accepts_without_the_judge_does_not_count():
    warned = []
    check = JudgeCheck("own", warned.append)
    check.add([True] * 20, 0.35)
    assert check.trusted(0.35) and not warned and check.known is None
