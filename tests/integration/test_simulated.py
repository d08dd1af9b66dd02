"""The real programs over simulated runtimes, on the real clock and over HTTP."""

import json
import subprocess
import sys

import pytest

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Deployment, Lookahead, Runtime, Sampling
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.runtimes.connect import deployed
from lr_sglang.verifiers import Setup, make
from tests import FULL
from tests.processes.mortal import mortals
from tests.serving import ROOT
from tests.simulated.model import Model
from tests.simulated.simulation import Simulation
from tests.simulated.transport import simulated_roles

ASKED = [{"role": "user", "content": "How long is a step?"}]
QUICK = Simulation(Model(steps=8), step_seconds=0.08, c1=0.1, judge_seconds=0.01)


def answer(roles, look):
    verifier = make(look.verifier, Setup(roles, "paper"))
    job = AnswerRequest(look, Sampling(seed=0), verifier=verifier, question="q")
    lookahead.run(ASKED, job, backend=roles["target"])
    return job.record


# -- the benchmark of the controller


def controller(*options):
    """The figures of benchmarks/controller.py, in a process of its own."""
    command = [sys.executable, ROOT / "benchmarks" / "controller.py", *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout)


def test_the_controller_is_measured_against_its_bound():
    words = "--steps 4 --step-seconds 0.05 --judge-seconds 0 --depth 3 --questions 8"
    found = controller(*words.split())
    assert (found["questions"], found["lookahead"]["verifier"]) == (8, "exact")
    assert found["bound"].keys() == {"event_driven", "formula", "paper"}
    assert found["per_step"].keys() == {"target_branches", "draft_branches", "judge_calls"}
    assert 0 < found["efficiency_worst"] <= found["efficiency"] <= found["efficiency_best"] <= 1
    assert found["calls"] > 8 * 4 and found["cpu_ms_per_call"] > 0
    assert found["threads"] <= 4, "questions have no threads of their own"


if FULL:  # minutes, and a machine with nothing else to do

    @pytest.mark.parametrize(("count", "least"), [(1, 0.98), (64, 0.95)])
    def test_the_controller_is_near_its_bound(count, least):
        words = "--alpha .62 --c1 .1 --step-seconds .2 --depth 6 --judge-seconds 0 --steps 60"
        tried = (controller(*words.split(), "--questions", str(count)) for _ in range(3))
        assert any(found["efficiency"] > least for found in tried)


# -- over HTTP


@pytest.fixture(scope="module")
def roles(tmp_path_factory):
    """Simulated runtimes in processes of their own."""
    folder = tmp_path_factory.mktemp("simulated")
    words = ("--steps", "8", "--step-seconds", "0.08", "--judge-seconds", "0.01")
    with mortals(folder, *words) as served:
        runtimes = {role: Runtime(url=one.url) for role, one in served.items()}
        with deployed(Deployment("simulated", runtimes), folder) as found:
            yield found


@pytest.mark.parametrize(
    "look",
    [
        Lookahead("sync"),
        Lookahead("sync", verifier="likelihood:min", gate=0.1),
        Lookahead("sync", verifier="cascade:likelihood,judge"),
    ],
    ids=lambda look: look.verifier,
)
def test_the_answer_is_the_same_over_http(roles, look):
    """In the sync schedule, in which no draft comes too late on a busy machine."""
    record, other = answer(roles, look), answer(simulated_roles(QUICK), look)
    assert record.ids == other.ids and not record.failures
    assert [v and v.by for s in record.steps for v in s.verdicts] == [
        v and v.by for s in other.steps for v in s.verdicts
    ]
    assert record.accepted > 1, "some agree, and it is seen"
    if look.gate:
        assert all(c is not None and c < 0 for s in record.steps for c in s.confidences)
