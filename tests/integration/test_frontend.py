"""Any SGLang program, unchanged, over a lookahead backend on simulated runtimes."""

import asyncio
import inspect

import pytest
import sglang as sgl
from sglang.lang.ir import REGEX_INT

from lr_sglang.config import Lookahead
from lr_sglang.engine.loop import background
from lr_sglang.engine.tokenizer import resolve
from lr_sglang.errors import ConfigError
from lr_sglang.frontend.dsl import run_program, step
from lr_sglang.user_programs.lookahead_backend import LookaheadBackend, lookahead
from tests.simulated.transport import fast_roles, heard

GREEDY = {"temperature": 0.0}
QUESTION = "Simulated question 1?"


def backend(alpha: float = 0.7, steps: int = 12, **options) -> LookaheadBackend:
    return LookaheadBackend(
        fast_roles(alpha, steps), Lookahead(depth=3), judge_prompt="paper", **options
    )


ANSWER = sgl.gen("answer", max_tokens=2000, **GREEDY)


@sgl.function
def one_turn(s, said, question=QUESTION):
    s += sgl.user(question) + sgl.assistant(said)


@sgl.function
def two_ways(s, question):
    s += sgl.user(question)
    s += sgl.assistant_begin()
    s += sgl.gen("opening", max_tokens=500, stop="\n\n", **GREEDY)
    s += "\n\n"
    s += lookahead("rest", max_tokens=2000, depth=2, verifier="exact", **GREEDY)
    s += sgl.assistant_end()


def reference(question: str, **options) -> str:
    """What the target writes by itself."""
    return one_turn.run(ANSWER, question, backend=backend(**options).target)["answer"]


def test_an_unchanged_program_is_answered_by_lookahead_reasoning():
    used = backend(alpha=1.0)
    state = one_turn.run(ANSWER, backend=used)
    meta, known = state.get_meta_info("answer"), used.target.tokenizer  # waits for the answer
    assert used.counts == {"lookahead": 1}
    assert meta["lookahead"]["accepted"] > 0 and meta["lookahead"]["alpha"] == 1.0
    assert meta["completion_tokens"] == len(resolve(state["answer"], known)) + 1  # its end
    assert state.messages()[-1] == {"role": "assistant", "content": state["answer"]}


def test_one_gen_of_a_program_as_it_is_told():
    used = backend(everything=False)
    state = two_ways.run("Simulated question 1?", backend=used)
    assert state["opening"] + "\n\n" + state["rest"] == reference("Simulated question 1?")
    assert used.counts == {"lookahead": 1, "plain": 1}


def sent_seeds(ahead=True, seed=0, **given):
    """The seeds that the target is sent for three forks and a short generation after them."""

    @sgl.function
    def program(s):
        s += sgl.user("Simulated question 1?")
        s += sgl.assistant_begin()
        forks = s.fork(3)
        for fork in forks:
            fork += sgl.gen("answer", max_tokens=20, temperature=0.8, **given)
        s += forks[0]["answer"] + "\n\n"
        s += sgl.gen("rest", max_tokens=20, temperature=0.8)

    used = backend(alpha=1.0)
    used.seed, used.ahead = seed, ahead
    sent = heard(used.target.transport)
    program.run(backend=used).sync()
    return [payload["sampling_params"]["sampling_seed"] for payload in sent]


def test_what_the_target_writes_alone_is_drawn_by_the_seed_too():
    first = sent_seeds()
    assert len(first) == len(set(first)) == 4, "forks and places of a program differ"
    assert sent_seeds() == first == sent_seeds(ahead=False)
    assert not set(first) & set(sent_seeds(seed=1))


def test_a_stop_string_cuts_the_text_and_ends_the_work():
    used = backend(steps=40)
    whole = reference("Simulated question 1?", steps=40)
    stop = whole.split("\n\n")[3]

    @sgl.function
    def cut(s):
        s += sgl.user("Simulated question 1?")
        s += sgl.assistant(lookahead("answer", 4000, stop=stop, verifier="exact", **GREEDY))
        s += sgl.user("Go on?")
        s += sgl.assistant(sgl.gen("more", max_tokens=20, **GREEDY))

    state = cut.run(backend=used)
    assert state["answer"] == whole[: whole.index(stop)]
    assert state.get_meta_info("answer")["lookahead"]["steps"] < 12
    assert state.get_meta_info("answer")["finish_reason"] == {"type": "stop", "matched": stop}
    assert state["more"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"max_tokens": 500, "regex": "[0-9]+"}, "regex"),
        ({"max_tokens": 500, "json_schema": '{"type": "object"}'}, "json_schema"),
        ({"max_tokens": 500, "return_logprob": True}, "return_logprob"),
        ({"max_tokens": 8}, "short"),
        ({"max_tokens": 500, "frequency_penalty": 0.5}, "frequency_penalty"),
    ],
)
def test_what_cannot_be_looked_ahead_for_goes_to_the_target(given, reason):
    used = backend()
    sent = heard(used.target.transport)
    assert one_turn.run(sgl.gen("answer", **given), backend=used)["answer"]
    assert used.counts == {reason: 1}
    (payload,) = sent
    asked = {
        **payload,
        **payload["sampling_params"],
        "max_tokens": payload["sampling_params"]["max_new_tokens"],
    }
    assert {name: asked[name] for name in given} == given


def test_a_picture_is_refused_by_name(tmp_path):
    (tmp_path / "dot.png").write_bytes(b"whatever")
    used, asked = backend(), sgl.image(str(tmp_path / "dot.png")) + QUESTION
    with pytest.raises(ConfigError, match="pictures"):
        one_turn.run(sgl.gen("answer", max_tokens=500), asked, backend=used)["answer"]
    assert used.counts == {"images": 1}


def test_a_program_within_a_program():
    @sgl.function
    def whole(s):
        s["first"] = one_turn.run(ANSWER, backend=used)["answer"]  # with a state of its own
        opening = sgl.gen("opening", max_tokens=2000, **GREEDY)
        one_turn.func(s, opening, "Simulated question 2?")  # in this one
        s += sgl.user("Simulated question 3?")
        s += sgl.assistant(sgl.gen("answer", max_tokens=2000, **GREEDY))

    used = backend()
    used.options = used.options.replace(verifier="exact")
    state = whole.run(backend=used)
    assert state["first"] == reference("Simulated question 1?")
    assert state["opening"] == reference("Simulated question 2?")
    assert [message["role"] for message in state.messages()] == ["user", "assistant"] * 2
    assert state["answer"] and used.counts == {"lookahead": 3}


def test_a_step_is_a_step():
    used = backend()
    assert one_turn.run(step("first", max_tokens=100), backend=used)["first"].endswith("\n\n")
    assert used.counts == {"plain": 1}


def test_select_goes_to_the_target_and_takes_the_likeliest():
    used = backend()
    state = one_turn.run(sgl.gen("choice", choices=["yes", "no", "perhaps"]), backend=used)
    chosen, scores = state["choice"], state.get_meta_info("choice")["normalized_prompt_logprobs"]
    assert used.counts == {"select": 1}
    assert chosen == ["yes", "no", "perhaps"][scores.index(max(scores))]


@pytest.mark.parametrize(("wrong", "name"), [({"depth": 0}, "depth"), ({"deptth": 3}, "deptth")])
def test_options_that_cannot_be_are_refused_where_they_are_written(wrong, name):
    with pytest.raises(ConfigError, match=name):
        lookahead("answer", **wrong)


UNUSABLE = {
    "choices": ({"choices": ["yes", 2]}, {"choices": ["yes", ""]}),
    "temperature": ({"choices": ["yes", "no"], "temperature": 0.7},),
    "stop": ({"stop": ""}, {"stop": ["x", ""]}, {"stop": [None]}, {"stop": 5}),
}


@pytest.mark.parametrize("most", [20, 500], ids=["target", "lookahead"])
@pytest.mark.parametrize(
    ("name", "given"), [(name, one) for name, each in UNUSABLE.items() for one in each]
)
def test_what_gen_cannot_follow_is_refused_by_name(name, given, most):
    with pytest.raises(ConfigError, match=name):
        one_turn.run(sgl.gen("answer", max_tokens=most, **given), backend=backend()).text()


def test_no_choice_and_an_empty_stop_string_of_lookahead_are_refused_by_name():
    with pytest.raises(ConfigError, match="choices"):
        one_turn.run(sgl.select("answer", []), backend=backend()).text()
    with pytest.raises(ConfigError, match="stop"):
        lookahead("answer", stop=["x", ""])


def test_a_backend_that_was_asked_for_its_loop_answers_on_any_other():
    d = backend()
    assert d.loop is background()
    assert asyncio.run(run_program(one_turn, ANSWER, "Why?", backend=d))["answer"]


# What ``gen`` takes: how the server gets it, or None if it is refused without another option.
GEN = {
    "max_tokens": (7, ("sampling_params", "max_new_tokens", 7)),
    "min_tokens": (2, ("sampling_params", "min_new_tokens", 2)),
    "n": (3, None),
    "stop": (["x"], ("sampling_params", "stop", ["x"])),
    "stop_token_ids": ([5], ("sampling_params", "stop_token_ids", [5])),
    "stop_regex": ("x+", ("sampling_params", "stop_regex", "x+")),
    "temperature": (0.5, ("sampling_params", "temperature", 0.5)),
    "top_p": (0.5, ("sampling_params", "top_p", 0.5)),
    "top_k": (5, ("sampling_params", "top_k", 5)),
    "min_p": (0.5, ("sampling_params", "min_p", 0.5)),
    "frequency_penalty": (0.5, ("sampling_params", "frequency_penalty", 0.5)),
    "presence_penalty": (0.5, ("sampling_params", "presence_penalty", 0.5)),
    "ignore_eos": (True, ("sampling_params", "ignore_eos", True)),
    "return_logprob": (True, ("return_logprob", True)),
    "logprob_start_len": (1, None),
    "top_logprobs_num": (4, None),
    "return_text_in_logprobs": (True, None),
    "dtype": (int, ("sampling_params", "regex", REGEX_INT)),
    "regex": ("[0-9]+", ("sampling_params", "regex", "[0-9]+")),
    "json_schema": ('{"type": "object"}', ("sampling_params", "json_schema", '{"type": "object"}')),
}


def test_what_gen_takes_reaches_the_server_or_is_refused_by_name():
    """Through the target alone and through a backend that looks ahead."""
    names = inspect.signature(sgl.gen).parameters.keys() - {"name", "choices", "choices_method"}
    assert names == GEN.keys()
    used = backend()
    sent = heard(used.target.transport)
    for name, (value, where) in GEN.items():
        sent.clear()
        if where is None:
            for on in (used, used.target):
                with pytest.raises(ConfigError, match=name):
                    one_turn.run(sgl.gen("answer", **{name: value}), backend=on).text()
            assert not sent
            continue
        assert one_turn.run(sgl.gen("answer", **{name: value}), backend=used)["answer"]
        sent.clear()
        one_turn.run(sgl.gen("answer", **{name: value}), backend=used.target).sync()
        found = sent[0]
        for part in where[:-1]:
            found = found[part]
        assert found == where[-1], name
    more = {"logprob_start_len": 1, "top_logprobs_num": 4, "return_text_in_logprobs": True}
    one_turn.run(sgl.gen("answer", return_logprob=True, **more), backend=used.target).sync()
    assert {name: sent[-1][name] for name in more} == more
