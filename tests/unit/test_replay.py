"""The headroom of a run against runs that were made that way, by the real programs on the virtual
clock."""

from dataclasses import asdict

import pytest

from lr_sglang.config import Lookahead
from lr_sglang.results.record import of_branch
from lr_sglang.theory import replay
from tests.simulated.model import Model, Simulation
from tests.simulated.virtual import answer_all, questions

# Judges from free to slow, windows that the draft fills and that it does not, steps of equal length
# and not.
CASES = [(0.1, 6, 0.0, 0.0), (0.1, 3, 0.4, 0.0), (0.3, 4, 0.2, 0.0), (0.2, 6, 0.2, 0.5)]


def run(look, alpha, c1, judge, spread):
    """The records of three answers, as far as a replay needs them."""
    model = Model(alpha=(alpha,), steps=16, spread=spread, own_words=True, seed=3)
    simulation = Simulation(model, 1.0, c1, judge)
    look = look.replace(max_step_tokens=model.longest)
    return [
        {
            "mode": "lookahead",
            "config": {"lookahead": look.to_dict()},
            "error": None,
            "seconds": trace.seconds,
            "steps": [asdict(step) for step in trace.steps],
            "branches": [of_branch(branch) for branch in trace.branches],
        }
        for trace in answer_all(simulation, look, questions(3))
    ]


@pytest.mark.parametrize("schedule", ["async", "sync"])
@pytest.mark.parametrize(("c1", "depth", "judge", "spread"), CASES)
def test_headroom_is_what_a_run_made_that_way_gains(schedule, c1, depth, judge, spread):
    look = Lookahead(schedule=schedule, depth=depth)
    found = [replay.headroom(record) for record in run(look, 0.6, c1, judge, spread)]
    made = {
        "as it was": (0.6, c1, judge),
        "free judge": (0.6, c1, 0.0),
        "perfect draft": (1.0, c1, 0.0),
        "draft 2x as fast": (0.6, c1 / 2, judge),
        "all of it": (1.0, c1 / 2, 0.0),
    }
    assert {*found[0]} == {*made}
    for name, settings in made.items():
        records = run(look, *settings, spread)
        expected = sum(record["seconds"] for record in records)
        exact = 0.001 if name == "as it was" and not spread else 0.1
        assert sum(one[name] for one in found) == pytest.approx(expected, rel=exact), name


def test_a_late_draft_is_late_again_and_in_time_if_it_is_faster():
    (record, *_) = run(Lookahead(depth=4), 1.0, 1.05, 0.0, 0.0)
    found = replay.headroom(record)
    for name in ("as it was", "perfect draft"):
        assert found[name] == pytest.approx(record["seconds"], rel=0.001)
    assert found["all of it"] < 0.6 * record["seconds"]


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "autoregressive"},
        {"program": {}},
        {"error": "x"},
        {"steps": []},
        {"branches": []},
        {"read_tokens": 7, "config": {"lookahead": Lookahead(schedule="sync").to_dict()}},
        {"config": {"lookahead": Lookahead(width=2).to_dict()}},
        {"config": {"lookahead": Lookahead(policy="adaptive").to_dict()}},
    ],
)
def test_what_cannot_be_replayed(change):
    record = run(Lookahead(), 0.6, 0.1, 0.1, 0.0)[0]
    assert replay.headroom(record) and not replay.headroom(record | change)
