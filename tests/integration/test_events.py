"""What a request tells while its answer is made, over simulated runtimes."""

from collections import Counter

import pytest

from lr_sglang import verifiers
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Lookahead
from lr_sglang.errors import Cancelled
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps.trace import Event
from tests.simulated.model import Model, Simulation
from tests.simulated.transport import simulated_roles

ASKED = [{"role": "user", "content": "Simulated question 1?"}]


def answered(
    look: Lookahead | None, program=lookahead, **simulated
) -> tuple[AnswerRequest, list[Event]]:
    simulation = Simulation(
        Model(alpha=(0.6,), steps=20, seed=3), step_seconds=0.01, judge_seconds=0.002, **simulated
    )
    roles, told = simulated_roles(simulation), list[Event]()
    verifier = (
        verifiers.make_verifier(look.verifier, verifiers.Setup(roles, "paper")) if look else None
    )
    request = AnswerRequest(lookahead=look or Lookahead(), verifier=verifier, on_event=told.append)
    seen = []
    request.on_step = lambda step: seen.append(request.trace.finish)
    program.run(ASKED, request, backend=roles["target"])
    # another thread that saw the end earlier would take the answer for complete without its last
    # step
    assert seen == [""] * len(request.trace.steps) and request.trace.finish == "stop"
    return request, told


@pytest.mark.parametrize("schedule", ["async", "sync"])
@pytest.mark.parametrize("width", [1, 2])
def test_events_tell_the_answer_and_every_node_of_it(schedule, width):
    request, told = answered(Lookahead(schedule=schedule, depth=3, width=width), c1=0.2)
    kept = [event for event in told if event.kind in ("accepted", "corrected", "bonus")]
    assert "".join(event.text for event in kept) == request.trace.text
    assert [event.position for event in kept] == list(range(len(request.trace.steps)))
    assert [event.kind for event in kept] == [step.outcome for step in request.trace.steps]
    assert [event.prefix for event in kept] == [0, *(event.node for event in kept[:-1])]
    assert told[-1].kind == "ended" and told[-1].outcome == request.trace.finish
    assert [event.seconds for event in told] == sorted(event.seconds for event in told)

    begun = Counter(event.role for event in told if event.kind == "begun")
    # what a draft's thread has gone on to write, and nobody has claimed, belongs to no node
    unclaimed = Counter(branch.role for branch in request.trace.branches)
    unclaimed.subtract(begun)
    assert unclaimed["target"] == unclaimed["judge"] == 0 <= unclaimed["draft"]
    nodes = [event.node for event in told if event.kind == "begun" and event.role == "draft"]
    assert len(set(nodes)) == len(nodes) and 0 not in nodes
    known = {0}
    for event in told:
        assert event.prefix in known, event
        known |= {event.node} if event.node is not None else set()
    verdicts = {event.node: event.verdict for event in told if event.kind == "verified"}
    for event in kept:
        if event.kind == "accepted":
            assert verdicts[event.node].accepted
    assert any(event.kind == "dropped" and event.outcome == "rejected" for event in told)


def test_events_are_plain_json_without_what_is_empty():
    _, told = answered(Lookahead(depth=2))
    first = next(
        event for event in told if event.kind == "begun" and event.role == "target"
    ).to_dict()
    assert set(first) == {"kind", "seconds", "role", "position", "prefix"}
    verified = next(
        event for event in told if event.kind == "verified" and event.verdict.by == "judge"
    ).to_dict()
    assert isinstance(verified["verdict"]["accepted"], bool)


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_a_stop_is_never_lost(schedule):
    """Asked for in the very moment in which a step is kept."""
    for at in range(1, 12):
        simulation = Simulation(
            Model(alpha=(0.9,), steps=40), step_seconds=0.004, judge_seconds=0.0
        )
        roles = simulated_roles(simulation)
        request = AnswerRequest(
            lookahead=Lookahead(schedule=schedule, depth=4, verifier="exact"),
            verifier=verifiers.make_verifier("exact", verifiers.Setup(roles, "paper")),
        )
        request.on_step = lambda step, request=request, at=at: (
            request.stop() if step.position == at else None
        )
        with pytest.raises(Cancelled):
            lookahead.run(ASKED, request, backend=roles["target"])
        assert len(request.trace.steps) < at + 8
        assert all(branch.outcome for branch in request.trace.branches)
