"""lr_sglang from Python: solve, stream, batches and closing, over simulated runtimes; and the
examples of the docs.
"""

import asyncio
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sglang as sgl

import lr_sglang as lr
from lr_sglang.api import solve as opened_deployment
from lr_sglang.config import Deployment, Runtime
from tests import ROOT, fixture_of, in_thread
from tests.called import python
from tests.scripted import END, ScriptedTransport, deployment, set_facts
from tests.serving import until
from tests.simulated.transport import fast_roles

DOCS = ROOT / "docs"
QUESTION = "Simulated question 1?"


d = fixture_of(lambda: lr.deployment(fast_roles()), "function")


def says(text):
    """A deployment whose models all say the same."""
    roles = ("target", "draft", "judge")
    return deployment(
        **{role: ScriptedTransport(lambda t, s: text + chr(END)) for role in roles}
    ).roles


def test_one_question(d):
    solution = lr.solve(QUESTION, deployment=d, depth=3, verifier="exact", temperature=0)
    alone = lr.solve(QUESTION, deployment=d, mode="autoregressive", temperature=0)
    assert str(solution) == solution.text == alone.text
    assert (
        len(solution.steps) == 12 and solution.record["mode"] == "lookahead" and alone.alpha is None
    )
    assert solution.record["config"]["lookahead"]["depth"] == 3
    assert solution.question == QUESTION and solution.seconds > 0


def test_a_conversation_and_its_answer():
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many?"},
    ]
    with lr.deployment(says("So \\boxed{17}.")) as d:
        solution = lr.solve(messages, deployment=d, max_tokens=50)
    assert solution.answer == "17" and solution.question == "How many?"


def test_streamed_steps_are_the_answers(d):
    steps = lr.stream(QUESTION, deployment=d, depth=3)
    with pytest.raises(lr.LookaheadError, match="not complete"):
        _ = steps.solution
    assert "".join(step.text for step in steps) == steps.solution.text
    with pytest.raises(lr.LookaheadError, match="once"):
        list(steps)


def test_the_event_loop_has_both(d):
    async def go():
        steps = lr.stream(QUESTION, deployment=d, verifier="exact", temperature=0)
        found = [step.text async for step in steps]
        both = await asyncio.gather(
            *(lr.asolve(QUESTION, deployment=d, verifier="exact", temperature=0) for _ in range(3))
        )
        return "".join(found), {solution.text for solution in both}

    text, texts = asyncio.run(go())
    assert texts == {text}


def test_leaving_a_stream_early_stops_the_answer():
    with lr.deployment(fast_roles(steps=300, seconds=0.02)) as d:
        for step in lr.stream(QUESTION, deployment=d):
            assert step.position == 0
            break
        assert not d.requests.running

        async def go():
            with pytest.raises(asyncio.TimeoutError):
                async with asyncio.timeout(0.3):
                    await lr.asolve(QUESTION, deployment=d)

        asyncio.run(go())
        assert not d.requests.running


def test_events_are_told(d):
    events = []
    solution = lr.solve(QUESTION, deployment=d, depth=3, on_event=events.append)
    kinds = [event.kind for event in events]
    assert {"drafted", "verified", "accepted"} <= set(kinds) and kinds[-1] == "ended"
    assert sum(kind in ("accepted", "corrected", "bonus") for kind in kinds) == len(solution.steps)
    heard = []
    lr.solve(QUESTION, deployment=d, program="self_consistency:samples=2", on_event=heard.append)
    assert sum(event.kind == "ended" for event in heard) == 2


@pytest.mark.parametrize(
    ("layer", "mode", "made"),
    [
        ("NGRAM", "lookahead", "lookahead+sd"),
        ("NGRAM", "autoregressive", "sd"),
        ("", "sd", None),
        ("", "lookahead+sd", None),
    ],
)
def test_a_token_layer_names_the_mode_and_a_mode_that_needs_one_is_refused(layer, mode, made):
    roles = fast_roles()
    set_facts(roles["target"], token_layer=layer)
    with lr.deployment(roles) as d:
        if made:
            assert lr.solve(QUESTION, deployment=d, mode=mode).record["mode"] == made
        else:
            with pytest.raises(lr.LookaheadError, match=rf"{re.escape(mode)}: .* no token layer"):
                lr.solve(QUESTION, deployment=d, mode=mode)


def test_many_threads_share_one_deployment(d):
    before = threading.active_count()
    with ThreadPoolExecutor(6) as threads:
        made = threads.map(
            lambda _: lr.solve(QUESTION, deployment=d, verifier="exact", temperature=0), range(6)
        )
        assert len({solution.text for solution in made}) == 1
    until(lambda: threading.active_count() <= before, 10)


def test_what_is_given_twice_is_refused():
    with pytest.raises(lr.LookaheadError, match="backends are given, and draft beside them"):
        lr.deployment(fast_roles(), draft="a/model")


def test_closing_stops_what_is_running():
    d = lr.deployment(fast_roles(steps=300, seconds=0.05)).open()
    thread, raised = in_thread(lambda: lr.solve(QUESTION, deployment=d))
    until(lambda: d.requests.running or not thread.is_alive(), 20)
    d.close()
    d.close()
    thread.join(20)
    assert [type(error).__name__ for error in raised] == ["Cancelled"]
    with pytest.raises(lr.LookaheadError, match="not open"):
        lr.solve(QUESTION, deployment=d)


SCRIPT = """
from lr_sglang.sglang_api.light_import import leave_torch_out
leave_torch_out()
import lr_sglang as lr
from tests.simulated.transport import fast_roles

with lr.deployment(fast_roles(steps=50)) as d:
    def fail(event):
        if event.kind == "accepted":
            d.roles["target"].transport.faults.dead = True
    try:
        lr.solve("Simulated question 1?", deployment=d, on_event=fail)
    except lr.LookaheadError as error:
        kept = error
    d.roles["target"].transport.faults.dead = False
    lr.solve("Simulated question 1?", deployment=d, on_event=fail, program="best_of_n")
"""


def test_a_script_that_fails_ends():
    """Python waits for threads at its end, and an error that nobody has caught is kept
    until then.
    """
    assert "RuntimeDown" in python("-c", SCRIPT, code=1).stderr


FAILS_WHILE_OPEN = """
import sys
from contextlib import contextmanager
from lr_sglang.sglang_api.light_import import leave_torch_out
leave_torch_out()
import lr_sglang as lr
from lr_sglang.api import solve
from tests.simulated.transport import fast_roles

@contextmanager
def deployed(*_, **__):
    try:
        yield fast_roles(steps=5)
    finally:
        print("in time" if not sys.is_finalizing() else "too late")

solve.deployed = deployed
d = lr.deployment("pocket").open()
raise ValueError("mine")
"""


def test_a_script_that_fails_with_an_open_deployment_has_one_traceback():
    done = python("-c", FAILS_WHILE_OPEN, code=1)
    assert done.stdout == "in time\n"
    assert done.stderr.count("Traceback") == 1 and done.stderr.endswith("ValueError: mine\n")


@pytest.mark.parametrize(
    ("question", "given", "match"),
    [
        ("", {}, "empty"),
        ([], {}, "empty"),
        ([{"role": "user"}], {}, "empty"),
        (None, {}, "or none"),
        (7, {}, "or none"),
        (["How many?", "How long?"], {}, "or none"),
        ({"role": "user", "content": "How many?"}, {}, "or none"),
        (QUESTION, {"dept": 3}, "no option 'dept'"),
        (QUESTION, {"depth": 0}, "depth"),
        (QUESTION, {"temperature": -1}, "temperature"),
        (QUESTION, {"mode": "fast"}, "no mode"),
        (QUESTION, {"program": "fast"}, "no program"),
        (QUESTION, {"verifier": "fast"}, "no verifier"),
        (QUESTION, {"verifier": object()}, "verifier: must be a name"),
        (QUESTION, {"program": len}, "an @sgl.function, not builtin"),
        ([{"role": "robot", "content": "x"}], {}, "no role"),
    ],
)
def test_what_cannot_be_is_said(d, question, given, match):
    with pytest.raises(lr.LookaheadError, match=match):
        lr.solve(question, deployment=d, **given)


@pytest.mark.parametrize("given", ["pocket", None, 7, fast_roles])
def test_a_question_needs_an_open_deployment(given):
    with pytest.raises(
        lr.LookaheadError, match=r"expected an open one.*\nHint: .*with lr.deployment"
    ):
        lr.solve(QUESTION, deployment=given)
    with pytest.raises(lr.LookaheadError, match="expected an open one"):
        lr.stream(QUESTION, deployment=given)


def test_a_function_for_events_that_exits_ends_its_own_answer(d):
    with pytest.raises(SystemExit):
        lr.solve(QUESTION, deployment=d, on_event=lambda event: sys.exit(3))
    assert lr.solve(QUESTION, deployment=d).text.strip()


def test_a_programs_option_is_bound_to_it(d):
    @sgl.function
    def twice(s, messages, word="so"):
        s["answer"] = word

    with pytest.raises(lr.LookaheadError, match=r"Hint: .*NAME\.bind\(word=\.\.\.\)"):
        lr.solve(QUESTION, deployment=d, program=twice, word="thus")
    assert lr.solve(QUESTION, deployment=d, program=twice.bind(word="thus")).text == "thus"
    with pytest.raises(AssertionError):  # SGLang's own
        twice.bind(wrod="thus")


def blocks():
    for page in ("python.md", "programs.md"):
        text = (DOCS / page).read_text("utf-8")
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
            yield pytest.param(code, id=f"{page}-{number}")


@pytest.mark.parametrize("code", blocks())
def test_the_examples_of_the_docs_run(code, monkeypatch, here):
    @contextmanager
    def deployed(plan, logs, timeout):
        yield fast_roles(steps=4)

    monkeypatch.setattr(opened_deployment, "deployed", deployed)
    monkeypatch.setattr(lr, "deployed", lambda plan, logs: deployed(plan, logs, 0), raising=False)
    exec(compile(code, "docs", "exec"), {"__name__": "__main__", "print": lambda *_, **__: None})


AT_URLS = {role: Runtime(url=f"http://{role}:1") for role in ("target", "draft", "judge")}


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        ({"of": Deployment("mine", AT_URLS)}, "pocket"),  # it is asked for its model
        ({}, "pocket"),
        ({"judge": "Qwen/Qwen2.5-7B-Instruct"}, "paper"),
        ({"judge": "target"}, "pocket"),
        ({"target": "owner/name", "draft": "owner/small", "judge": "pocket:judge"}, "pocket"),
        ({"target": "owner/name", "draft": "owner/small", "judge": "target"}, "paper"),
    ],
)
def test_the_judges_prompt_follows_the_judge(monkeypatch, given, prompt):
    @contextmanager
    def deployed(plan, logs, timeout):
        assert plan.judge_prompt == prompt
        yield fast_roles()

    found = opened_deployment.model_of
    monkeypatch.setattr(
        opened_deployment,
        "model_of",
        lambda role, runtime: "pocket:judge" if runtime.url else found(role, runtime),
    )
    monkeypatch.setattr(opened_deployment, "deployed", deployed)
    with lr.deployment(**given) as d:
        assert d.backend(verifier="exact") and d.config.judge_prompt == prompt
