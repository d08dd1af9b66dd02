"""A runtime that fails in an ordinary SGLang program: the reader gets the named error, at once, and
nothing hangs.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import sglang as sgl

from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.errors import BadReply, ConfigError, LookaheadError, RuntimeDown, RuntimeRefused
from lr_sglang.frontend.dsl import end, fork, on, step
from lr_sglang.steps.step import Verdict
from lr_sglang.verifiers.exact import Exact
from tests.scripted import END, ScriptedTransport, answered, chapters, deployment

DOWN = RuntimeDown("it died", role="target")
BOUND = 5.0


@pytest.fixture(autouse=True)
def forgotten():
    """An error keeps the frames it came through, and with them a program's forks."""
    yield
    DOWN.__traceback__ = None


def within_bounds(read: Callable[[], Any]) -> Any:
    """What ``read`` returns or raises, but never a hang."""
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(read())
        except BaseException as error:  # noqa: BLE001
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(BOUND)
    assert ended, "it hangs"
    return ended[0]


def runtime(seconds: float = 0.0):
    """Answers "ok", unless the prompt's text ends in "bad"."""
    transport = ScriptedTransport(
        lambda text, sampling: "ok" + chr(END),
        seconds=lambda text: seconds,
        fail=lambda text: DOWN if text.endswith("bad") else None,
    )
    return deployment(
        target=transport, draft=ScriptedTransport(lambda text, sampling: "draft" + chr(END))
    )


@sgl.function
def broken(s, then=None):
    """One good variable, one that fails, and whatever comes after."""
    s += sgl.user("hello")
    s += sgl.assistant_begin()
    s += sgl.gen("good", max_tokens=9)
    s += "bad"
    s += sgl.gen("failed", max_tokens=9)
    if then is not None:
        then(s)


READS = {
    "variable": lambda s: s["failed"],
    "text": lambda s: s.text(),
    "messages": lambda s: s.messages(),
    "meta": lambda s: s.get_meta_info("failed"),
    "later variable": lambda s: (s.__iadd__(sgl.gen("later", max_tokens=3)), s["later"]),
    "later text": lambda s: (s.__iadd__("more"), s.text()),
}


@pytest.fixture(params=[True, False], ids=["thread", "no thread"])
def use_thread(request):
    return request.param


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_after_the_end_raises_the_named_error(read, use_thread):
    s = within_bounds(lambda: broken.run(backend=runtime(), use_thread=use_thread))
    # SGLang waits for ever for what is added to a state that has ended, had it not failed
    within_bounds(s.sync)
    error = within_bounds(lambda: read(s))
    assert error is DOWN
    assert error.role == "target"


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_reading_inside_the_program_raises_the_named_error(read, use_thread, seconds):
    error = within_bounds(lambda: broken.run(read, backend=runtime(seconds), use_thread=use_thread))
    assert error is DOWN


def use_all_the_language(s):
    """Expressions that would kill the interpreter's thread after a failure, and a variable after
    them.
    """
    with s.var_scope("scope"):
        s += "x"
    s += sgl.assistant_end()
    s += sgl.user("again")
    s += sgl.assistant(sgl.gen("inside", max_tokens=3))
    s += sgl.separate_reasoning(sgl.gen("thought", max_tokens=3), model_type="qwen3")
    s += sgl.gen("failed", max_tokens=3)


@pytest.mark.parametrize("name", ["scope", "inside", "thought", "failed", "afterwards"])
def test_nothing_that_follows_a_failure_hangs(use_thread, name):
    def then(s):
        use_all_the_language(s)
        s += sgl.gen("afterwards", max_tokens=3)
        return s[name]

    assert within_bounds(lambda: broken.run(then, backend=runtime(), use_thread=use_thread)) is DOWN


@pytest.mark.parametrize("wait", [False, True], ids=["at once", "once it has failed"])
@pytest.mark.parametrize("size", [1, 3])
def test_forking_a_failed_state_raises_its_error(use_thread, wait, size):
    def then(s):
        if wait:
            s.sync()
        s.fork(size)

    backend = runtime(0.02)
    assert within_bounds(lambda: broken.run(then, backend=backend, use_thread=use_thread)) is DOWN
    assert len(backend.transport.requests) == 2, "no branch goes on without what its parent lacks"


def test_a_fork_that_fails_leaves_its_siblings_alone():
    @sgl.function
    def program(s):
        s += "start "
        forks = s.fork(3)
        for n, text in enumerate(("fine", "bad", "fine")):
            forks[n] += text
            forks[n] += sgl.gen("branch", max_tokens=3)
        s["found"] = [within_bounds(lambda f=f: f["branch"]) for f in forks.states]
        forks.join()

    assert within_bounds(lambda: program.run(backend=runtime())["found"]) == ["ok", DOWN, "ok"]


def test_a_state_moved_to_another_role_names_that_role():
    @sgl.function
    def program(s):
        s += "bad"
        draft = fork(s, "draft")
        draft += step("guess")
        s["guess"] = draft["guess"]
        on(draft, "target")
        draft += "bad"
        draft += step("own")
        try:
            draft["own"]
        finally:
            end(draft)

    with pytest.raises(LookaheadError, match=r"^target: "):
        program.run(backend=runtime())


def test_a_batch_raises_for_the_sample_that_failed_only():
    @sgl.function
    def program(s, text):
        s += text
        s += sgl.gen("x", max_tokens=3)

    done = within_bounds(
        lambda: program.run_batch(
            [{"text": t} for t in ("a", "bad", "c")], backend=runtime(), num_threads=2
        )
    )
    assert [within_bounds(lambda s=s: s["x"]) for s in done] == ["ok", DOWN, "ok"]


def test_a_select_that_fails_has_a_name_and_hangs_nothing(use_thread):
    """This runtime gives no log-probabilities."""

    @sgl.function
    def program(s):
        s += "a or b: "
        s += sgl.select("choice", choices=["a", "b"])
        s += sgl.gen("later", max_tokens=3)
        s["later"]

    backend = runtime()
    backend.transport._weigh = lambda payload: []
    error = within_bounds(lambda: program.run(backend=backend, use_thread=use_thread))
    assert isinstance(error, BadReply) and error.role == "target"


@pytest.mark.parametrize(
    "reply",
    [
        {},
        [],
        {"text": "x", "output_ids": [1], "meta_info": {}},
        {"text": "x", "output_ids": ["x"], "meta_info": {"finish_reason": {"type": "stop"}}},
        {"text": "x", "output_ids": [-5], "meta_info": {"finish_reason": {"type": "stop"}}},
        {"text": "x", "output_ids": [10**9], "meta_info": {"finish_reason": {"type": "stop"}}},
        {
            "text": "x",
            "output_ids": [97],
            "meta_info": {"finish_reason": {"type": "stop", "matched": END}},
        },
        {
            "text": "",
            "output_ids": [],
            "meta_info": {"finish_reason": {"type": "abort", "message": "by someone"}},
        },
        {"text": "", "output_ids": [], "meta_info": {"finish_reason": None}},
        ZeroDivisionError("whatever goes wrong in the transport"),
    ],
)
def test_a_reply_that_is_no_generation_is_a_bad_reply(reply, monkeypatch, use_thread):
    backend = runtime()

    async def generate(payload, request, timeout):
        if isinstance(reply, Exception):
            raise reply
        return reply

    monkeypatch.setattr(backend.transport, "generate", generate)
    error = within_bounds(
        lambda: broken.run(lambda s: s["good"], backend=backend, use_thread=use_thread)
    )
    if isinstance(error, BadReply):
        assert error.role == "target"
        assert not isinstance(reply, Exception) or str(reply) in str(error)
    else:
        assert reply["output_ids"] == [-5], "which this tokenizer leaves out"


@pytest.mark.parametrize("prefilled", [True, False])
def test_what_was_aborted_in_the_queue_cannot_be_shared(prefilled, monkeypatch):
    """SGLang's reply says nothing of its prompt then."""
    meta = {"finish_reason": {"type": "abort", "message": "Abort in waiting queue"}}
    reply = {
        "text": "",
        "output_ids": [],
        "meta_info": meta | ({"prompt_tokens": 9} if prefilled else {}),
    }
    backend, ids = runtime(), []

    async def generate(payload, request, timeout):
        ids.extend(payload["input_ids"])
        return reply

    monkeypatch.setattr(backend.transport, "generate", generate)
    within_bounds(lambda: broken.run(backend=backend)["good"])
    now, later = time.time(), {"prompt_tokens": len(ids) + 1}
    shareable = backend.request_log.add((*ids, 1), (), later, now, now)
    assert shareable() == (len(ids) if prefilled else 0)


def test_text_outside_of_roles_is_refused_and_not_lost():
    @sgl.function
    def mixed(s):
        s += "loose words"
        s += sgl.user("a question")
        s += sgl.assistant_begin()
        s += sgl.gen("x")

    state = mixed.run(
        backend=deployment(target=ScriptedTransport(lambda text, sampling: "an answer" + chr(END)))
    )
    with pytest.raises(ConfigError, match="outside of any role"):
        state["x"]


ODD = "\u4e00"


class Later:
    """Accepts everything, after a while."""

    name = "later"

    async def verify(self, inquiry):
        await asyncio.sleep(0.3)
        return Verdict(True, self.name)


def reads_not(error, schedule, verifier):
    """The record of an answer whose draft writes what the target does not take."""
    steps = ["one", "two", "three", "four"]
    target = ScriptedTransport(
        chapters(steps),
        seconds=lambda text: 0.0 if ODD in text else 0.1,
        fail=lambda text: error if ODD in text else None,
    )
    draft = ScriptedTransport(lambda text, seed: ODD + "\n\n", seconds=lambda text: 0.01)
    look, limits = Lookahead(schedule, depth=2), Limits(max_tokens=300)
    request = AnswerRequest(
        look, Sampling(temperature=0.0), limits, verifier=verifier, question="q"
    )
    record = answered(deployment(target=target, draft=draft), request, virtually=True)
    assert [step.text.strip() for step in record.steps] == steps
    return record


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_a_drafted_step_that_the_target_cannot_read_costs_the_draft_not_the_answer(schedule):
    """Tokens outside of its vocabulary: SGLang answers 400."""
    refused = RuntimeRefused("400: out of vocabulary", role="target")
    record = reads_not(refused, schedule, Exact())
    assert record.failures["draft"] > 0
    assert record.causes["draft"].startswith("the target refused its tokens: ")


def test_a_verdict_that_comes_after_the_targets_refusal_changes_nothing():
    """Of two drafted versions the target cannot read the first; both are accepted later."""
    refused = RuntimeRefused("400: out of vocabulary", role="target")
    target = ScriptedTransport(
        chapters(["one", "two"]),
        seconds=lambda text: 0.2 if ODD in text else 0.1,
        fail=lambda text: refused if ODD in text else None,
    )
    versions = itertools.cycle([ODD + "\n\n", "other\n\n"])
    draft = ScriptedTransport(lambda text, seed: next(versions))
    look = Lookahead("async", depth=2, width=2)
    request = AnswerRequest(look, limits=Limits(max_tokens=7), verifier=Later())
    record = answered(deployment(target=target, draft=draft), request, virtually=True)
    assert record.failures["draft"] == 1 and record.text == "other\n\n"


@pytest.mark.parametrize("schedule", ["async", "sync"])
def test_a_target_that_fails_after_a_draft_is_no_refused_draft(schedule):
    with pytest.raises(RuntimeDown, match="it died"):
        reads_not(DOWN, schedule, Exact())
