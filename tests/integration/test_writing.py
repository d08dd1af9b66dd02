"""What the threads of an answer do by themselves: going on, being used again, being ready; and what is left of it."""

import gc
import itertools
import threading
import time

import pytest

from lr_sglang.config import Lookahead, Sampling
from lr_sglang.errors import Cancelled
from lr_sglang.flight import Sent
from lr_sglang.job import Job
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.serve.gate import Gate, RuntimeAway
from lr_sglang.simulated.faults import Fault
from lr_sglang.simulated.model import Model
from lr_sglang.simulated.simulation import Simulation
from lr_sglang.simulated.transport import simulated_roles
from lr_sglang.verifiers import Setup, fast, make
from lr_sglang.writing import Writing
from tests.scripted import ScriptedTransport, chapters, deployment

ASK = [{"role": "user", "content": "How many?"}]


def answer(schedule="async", steps=30, alpha=0.7, faults=(), on_step=None, **look):
    roles = simulated_roles(Simulation(Model(alpha=(alpha,), steps=steps, seed=3, own_words=False), 0.01, 0.2, 0.0))
    for role, fault in faults:
        roles[role].transport.faults.order(fault)
    asked = Lookahead(depth=4, schedule=schedule, verifier="exact", **look)
    job = Job(asked, Sampling(seed=7), on_step=on_step)
    job.verifier = make(asked.verifier, Setup(roles, "paper"))
    lookahead.run(ASK, job, backend=roles["target"])
    return job.record, roles


def alone(monkeypatch):
    """Without anything that is done beforehand: every request is asked for by the program, in a fork of its own."""
    monkeypatch.setattr(Writing, "_plan", lambda self, sent: None)
    monkeypatch.setattr(Writing, "prepare", lambda self: False)


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_the_answer_is_the_same_as_if_the_program_asked_for_every_step(schedule, monkeypatch):
    record, _ = answer(schedule)
    with monkeypatch.context() as patch:
        alone(patch)
        plain, _ = answer(schedule)
    assert record.ids == plain.ids
    one, other = ({b.position: b.seed for b in made.of("draft") if b.outcome == "accepted"} for made in (record, plain))
    both = one.keys() & other.keys()
    assert len(both) > 10 and all(one[position] == other[position] for position in both)


def test_one_thread_writes_what_the_draft_says_in_a_row():
    begun, start = [], threading.Thread.start

    def counted(self):
        begun.append(self)
        start(self)

    threading.Thread.start = counted
    try:
        record, _ = answer("sync", alpha=1.0, steps=60)
    finally:
        threading.Thread.start = start
    assert len(record.branches) > 100
    assert len(begun) < 20, "forks are used again"
    drafts = sorted(record.of("draft"), key=lambda b: b.started)
    assert all(b.started >= a.ended - 0.002 for a, b in itertools.pairwise(drafts)), "one at a time"


@pytest.mark.parametrize("schedule", ["async", "sync"])
@pytest.mark.parametrize(
    "fault", [Fault("fail", after=3), Fault("garbage", after=5), Fault("late", after=2, seconds=0.05)]
)
def test_what_goes_wrong_in_a_row_of_drafts_is_survived(schedule, fault):
    before = threading.active_count()
    record, _ = answer(schedule, faults=[("draft", fault)])
    assert record.finish == "stop" and len(record.steps) == 30
    assert all(b.outcome is not None and b.ended is not None for b in record.branches)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_whatever_is_asked_of_a_runtime_is_in_the_books(schedule):
    record, roles = answer(schedule, alpha=0.5, steps=60)
    for role in ("target", "draft"):
        unsent = [b for b in record.of(role) if not b.prompt_tokens and b.outcome in ("cancelled", "rejected")]
        assert 0 <= len(record.of(role)) - roles[role].transport.calls <= len(unsent)
        assert sum(b.generated_tokens for b in record.of(role)) == record.tokens()[role]["generated"]
    assert record.tokens()["used"] + record.tokens()["wasted"] == record.tokens()["generated"]


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_an_answer_that_is_stopped_leaves_nothing(schedule):
    before, job = threading.active_count(), Job(Lookahead(depth=4, schedule=schedule, verifier="exact"))
    roles = simulated_roles(Simulation(Model(alpha=(0.9,), steps=500, seed=1, own_words=False), 0.02, 0.2, 0.0))
    job.verifier = make(job.lookahead.verifier, Setup(roles, "paper"))
    threading.Timer(0.15, job.stop).start()
    with pytest.raises(Cancelled):
        lookahead.run(ASK, job, backend=roles["target"])
    assert all(b.outcome is not None for b in job.record.branches)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_steps_are_told_in_order_and_all_of_them_even_if_a_listener_fails():
    told = []

    def hear(step):
        told.append(step.position)
        if step.position == 7:
            raise ValueError("a listener's own mistake")

    with pytest.raises(ValueError, match="own mistake"):
        answer("async", on_step=hear)
    assert told == sorted(told) and told[:8] == list(range(8))


# -- over scripted runtimes: what happens in the very moment can be chosen

TOLD = [f"step {n}" for n in range(40)]


class Reluctant(ScriptedTransport):
    """Takes a while to be rid of what is cancelled."""

    def generate(self, payload, call, timeout):
        try:
            return super().generate(payload, call, timeout)
        finally:
            if call.cancelled:
                time.sleep(0.03)


def scripted(target=0.01, draft=0.02, made=ScriptedTransport):
    return deployment(
        target=made(chapters(TOLD), lambda text: target),
        draft=made(chapters(TOLD), lambda text: draft),
        judge=ScriptedTransport(chapters(TOLD)),
    )


def job_for(target, on_step=None, **look):
    asked = Lookahead(depth=3, schedule="sync", verifier="exact", **look)
    job = Job(asked, Sampling(seed=1), on_step=on_step)
    job.verifier, job.fast = make("exact", Setup(target.roles, "paper")), fast(asked, target.roles)
    return job


@pytest.mark.parametrize("program", [lookahead, autoregressive])
def test_nothing_is_made_ready_once_an_answer_is_stopped(program):
    target = scripted(target=0.3 if program is autoregressive else 0.05, draft=0.05, made=Reluctant)
    job, before = job_for(target), set(threading.enumerate())
    if program is autoregressive:
        job.verifier = job.fast = None
    threading.Timer(0.07, job.stop).start()
    with pytest.raises(Cancelled):
        program.run(ASK, job, backend=target)
    deadline = time.monotonic() + 5
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


def test_a_request_that_fails_while_it_is_held_ready_fails_the_answer_and_not_silently():
    target = scripted()
    gate = target.transport = Gate(target.transport, "target")
    job = job_for(target)
    threading.Timer(0.1, lambda: setattr(gate, "shut", "it is down")).start()
    began = time.monotonic()
    with pytest.raises(RuntimeAway):
        lookahead.run(ASK, job, backend=target)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(("fast_accept", "slots"), [(-5.0, None), (None, 1)])
def test_threads_do_not_grow_with_an_answer(fast_accept, slots):
    seen = []
    target = scripted(draft=0.004)
    target.slots = slots
    job = job_for(target, on_step=lambda step: seen.append(threading.active_count()), fast_accept=fast_accept)
    lookahead.run(ASK, job, backend=target)
    assert len(seen) == len(TOLD)
    assert max(seen[-10:]) <= max(seen[:15]) + 2


def test_a_drafted_step_that_is_weighed_in_sync_is_drafted_once():
    target = scripted(draft=0.004)
    job = job_for(target, fast_accept=-5.0)
    lookahead.run(ASK, job, backend=target)
    positions = [branch.position for branch in job.record.of("draft")]
    assert len(positions) == len(set(positions))


def test_after_a_listener_has_left_no_step_is_recorded():
    target, told = scripted(draft=0.002), []

    def hear(step):
        told.append(step.position)
        if step.position == 2:
            raise Cancelled("a stop string was written")

    job = job_for(target, on_step=hear)
    with pytest.raises(Cancelled):
        lookahead.run(ASK, job, backend=target)
    assert told == [0, 1, 2] == [step.position for step in job.record.steps]


def test_what_was_sent_is_forgotten_without_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        target = scripted(target=0.003, draft=0.001)
        lookahead.run(ASK, job_for(target), backend=target)
        assert sum(type(one) is Sent for one in gc.get_objects()) < 10
    finally:
        gc.enable()
