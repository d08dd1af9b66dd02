"""One answer over simulated and scripted runtimes, on the virtual clock: faults, stops, listeners,
and what is left.
"""

import asyncio
from contextlib import nullcontext

import pytest

from lr_sglang.algorithm import policy
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Lookahead, Sampling
from lr_sglang.errors import Cancelled
from lr_sglang.frontend.dsl import run_program
from lr_sglang.modes import MODES
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.steps.branch import Request
from lr_sglang.verifiers import Setup, make_verifier
from tests.scripted import CONVERSATION, ScriptedTransport, answered, chapters, deployment
from tests.simulated.clock import run_virtually
from tests.simulated.model import Model, Simulation
from tests.simulated.transport import simulated_roles


def test_auto_writes_alone_where_looking_ahead_does_not_pay():
    """Every further request slows the target by half, and most drafts are refused."""
    slow = Simulation(Model(alpha=(0.3,), steps=400, seed=3, own_words=False), 0.01, 0.1, 0.0, 0.5)
    record = {}
    for program, mode in ((lookahead, "auto"), (autoregressive, "autoregressive")):
        roles = simulated_roles(slow)
        request = AnswerRequest(
            MODES[mode].lookahead(Lookahead(verifier="exact")), Sampling(seed=7)
        )
        request.verifier = make_verifier("exact", Setup(roles, "paper"))
        asked = [{"role": "user", "content": "How many?"}]
        record[mode] = answered(roles["target"], request, program, asked, virtually=True)
    seconds = {mode: one.seconds for mode, one in record.items()}
    assert seconds["auto"] <= seconds["autoregressive"] / 0.95, seconds
    assert len(record["auto"].of("target")) < 150, "most steps come in generations of several"


# -- over scripted runtimes: what happens in the very moment can be chosen

TOLD = [f"step {n}" for n in range(40)]


def scripted(target=0.01, draft=0.02):
    return deployment(
        target=ScriptedTransport(chapters(TOLD), lambda text: target),
        draft=ScriptedTransport(chapters(TOLD), lambda text: draft),
        judge=ScriptedTransport(chapters(TOLD)),
    )


def job_for(target, on_step=None, **look):
    asked = Lookahead(depth=3, schedule="sync", verifier="exact", **look)
    request = AnswerRequest(asked, Sampling(seed=1), on_step=on_step)
    request.verifier = make_verifier("exact", Setup(target.roles, "paper"))
    return request


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("schedule", ["async", "sync"])
@pytest.mark.parametrize("tokens", [1, 7, 9, 60, 5000])
def test_steps_in_one_generation_of_the_target_are_those_that_it_writes_one_by_one(
    schedule, tokens, streamed, monkeypatch
):
    """Wherever one is cut: in the middle of a step, of its blank line, at its end, or not before
    the answer's end; also if it arrives token by token.
    """
    whole = answered(scripted(), job_for(scripted()), autoregressive, virtually=True)

    def tokens_alone(self):
        root = self.tree.root
        idle = root.position % 3 == 0 and not root.version.branch and not root.children
        return min(tokens, self.tree.room(root)) if idle else 0

    monkeypatch.setattr(policy.Policy, "tokens_alone", tokens_alone)
    target = scripted()
    request = job_for(target)
    request.lookahead = request.lookahead.replace(schedule=schedule)
    heard = []
    request.on_tokens = heard.append if streamed else None
    record = answered(target, request, virtually=True)
    assert bool(heard) is (streamed and tokens > 1)
    assert "".join(step.text for step in record.steps) == "".join(step.text for step in whole.steps)
    assert record.finish == "stop"
    assert (
        sum(step.tokens for step in record.steps)
        == record.tokens()["used"]
        == whole.tokens()["used"]
    )
    assert all(b.outcome is not None and b.ended is not None for b in record.branches)
    assert any(step.outcome == "bonus" for step in record.steps)


class Enough(Exception):
    """A reader of tokens has read enough."""


@pytest.mark.parametrize("enough", [None, 40])
def test_plain_decoding_is_told_as_it_is_written(enough):
    """Steps and the tokens between them, in virtual time; who has read enough stops the target."""
    roles = simulated_roles(Simulation(Model(steps=6), step_seconds=1.0))
    request = AnswerRequest(sampling=Sampling(seed=0), question="q")
    told, steps = [], []

    def hear(ids):
        told.append((len(request.trace.ids) + len(ids), request.trace.branches[0].ended))
        if enough and told[-1][0] >= enough:
            raise Enough

    async def main():
        request.on_tokens, request.on_step = hear, lambda step: steps.append(step.seconds)
        with pytest.raises(Enough) if enough else nullcontext():
            await run_program(autoregressive, CONVERSATION, request, backend=roles["target"])

    run_virtually(main())
    (branch,) = request.trace.branches
    assert branch.outcome == "bonus" and branch.result is None
    written = [tokens for tokens, _ in told]
    assert written == sorted(written) and all(ended is None for _, ended in told)
    if enough:
        assert enough <= branch.generated_tokens < 100, "its generation was aborted"
        assert len(steps) == 1
        return
    assert len(written) > 100, "nearly every token was told"
    assert steps == pytest.approx([1, 2, 3, 4, 5, 6], abs=0.1)
    whole = AnswerRequest(sampling=Sampling(seed=0), question="q")
    again = simulated_roles(Simulation(Model(steps=6), step_seconds=1.0))["target"]
    assert answered(again, whole, autoregressive, virtually=True).ids == request.trace.ids


@pytest.mark.parametrize("program", [lookahead, autoregressive])
@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_a_stopped_or_cancelled_answer_leaves_nothing(program, how):
    target = scripted(target=0.3 if program is autoregressive else 0.05, draft=0.05)
    request = job_for(target)

    async def main():
        task = asyncio.create_task(run_program(program, CONVERSATION, request, backend=target))
        asyncio.get_running_loop().call_later(0.07, request.stop if how == "stop" else task.cancel)
        with pytest.raises(Cancelled if how == "stop" else asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks())

    assert run_virtually(main()) == 1
    assert all(b.outcome is not None and b.result is None for b in request.trace.branches)
    assert not any(backend.transport.running for backend in target.roles.values())


def test_a_verdict_that_its_answer_waits_for_comes_before_what_was_asked_later():
    """It was asked about a step that was ahead then; its judge takes one request at a time."""
    target, taken = scripted(draft=0.001), []
    judge = target.roles["judge"]
    judge.transport.seconds, judge.slots.size = lambda text: 1.0, 1
    request = AnswerRequest(
        Lookahead(depth=3), verifier=make_verifier("oracle:1", Setup(target.roles, "paper"))
    )

    async def other(begins, name):
        await asyncio.sleep(begins)
        await judge.slots.enter(Request())
        taken.append((name, len(judge.transport.requests)))
        await asyncio.sleep(1)
        judge.slots.leave()

    async def main():
        others = asyncio.gather(other(0.5, "first"), other(1.5, "second"))
        await run_program(lookahead, CONVERSATION, request, backend=target)
        await others

    run_virtually(main())
    assert taken == [("first", 1), ("second", 2)]


@pytest.mark.parametrize("error", [Cancelled, ValueError])
def test_after_a_listener_has_left_no_step_is_recorded(error):
    """A stop string was written, or the listener has a mistake of its own."""
    target, told = scripted(draft=0.002), []

    def hear(step):
        told.append(step.position)
        if step.position == 2:
            raise error("enough")

    request = job_for(target, on_step=hear)
    with pytest.raises(error, match="enough"):
        answered(target, request, virtually=True)
    assert told == [0, 1, 2] == [step.position for step in request.trace.steps]
