"""The scripted runtimes that users test their programs and verifiers with."""

import asyncio

import pytest
import sglang as sgl

import lr_sglang as lr
from lr_sglang import testing

WHOLE = ["One is 5.", "Two is 12.", "So 17."]


@pytest.mark.parametrize(
    ("judge", "text"),
    [
        ("aligned", "1: 5.\n\nTwo is 12.\n\nSo 17."),
        ("unaligned", "One is 5.\n\nTwo is 12.\n\nSo 17."),
        (lambda prompt, _: "ali" if "5" in prompt.question else "un", None),
    ],
)
def test_the_judges_label_decides(judge, text):
    roles = testing.runtimes(target=WHOLE, draft=["1: 5.", *WHOLE[1:]], judge=judge)
    with lr.deployment(roles) as d:
        solution = lr.solve("How many?", deployment=d, max_false_accepts=1.0)
    assert solution.text == (text or "1: 5.\n\nTwo is 12.\n\nSo 17.")


def test_a_program_forks_selects_and_has_its_limit_kept():
    @sgl.function
    def chosen(s, messages):
        judge = lr.fork(s, "judge")
        lr.converse(s, messages)
        s += sgl.gen("cut", max_tokens=8)
        judge += sgl.user("Which?") + sgl.assistant(sgl.select("best", choices=["1", "2"]))
        s["answer"] = s["cut"] + judge["best"]

    roles = testing.runtimes(target="One is 5.", draft="One", judge="2")
    with lr.deployment(roles) as d:
        assert lr.solve("How many?", deployment=d, program=chosen).text == "One is 52"
    assert roles["target"].transport.requests[0]["sampling_params"]["max_new_tokens"] == 8


def test_a_script_that_raises_is_a_runtime_that_fails():
    def down(prompt, sampling):
        raise lr.LookaheadError("gone")

    with lr.deployment(testing.runtimes(target=WHOLE, draft=down)) as d:
        solution = lr.solve("How many?", deployment=d, verifier="exact")
    assert solution.text == "\n\n".join(WHOLE)
    with lr.deployment(testing.runtimes(target=down)) as d, pytest.raises(lr.LookaheadError):
        lr.solve("How many?", deployment=d, mode="autoregressive")


def test_a_scripted_target_without_the_layer_takes_no_lines():
    target = testing.runtimes(target="One")["target"]
    assert target.facts.fed is None
    with pytest.raises(lr.LookaheadError, match="404"):
        asyncio.run(target.transport.deliver([("a", 0, [1])]))
