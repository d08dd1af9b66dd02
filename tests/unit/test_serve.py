"""The endpoint's parts, each by itself: what is shown of a text, keys, requests, the queue, errors,
the watch.
"""

import asyncio
import json
import logging
import random
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from starlette.responses import JSONResponse

from lr_sglang.cli import cli
from lr_sglang.cli.endpoint import service_of
from lr_sglang.cli.settings import settle
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.engine.refusal import WorkerLost
from lr_sglang.engine.request import Request
from lr_sglang.errors import (
    BadReply,
    Cancelled,
    ConfigError,
    PromptTooLong,
    RuntimeBusy,
    RuntimeDown,
    RuntimeRefused,
    RuntimeTimeout,
)
from lr_sglang.frontend.stream_text import Reasoning, Stops, StreamText, beginning
from lr_sglang.runtimes.attach import TEXT
from lr_sglang.serve import errors, keys
from lr_sglang.serve import health as health_module
from lr_sglang.serve.admission import Admission
from lr_sglang.serve.circuit_breaker import Gate, RuntimeAway
from lr_sglang.serve.errors import Refusal, refusal_of
from lr_sglang.serve.health import FAILURES, Health, Watch
from lr_sglang.serve.logs import JsonLines
from lr_sglang.serve.prompt import prepare
from lr_sglang.serve.protocol import ChatRequest, CompletionRequest
from lr_sglang.serve.request_options import options_of
from lr_sglang.serve.settings import Service, check_public, is_loopback
from lr_sglang.simulated.faults import Fault
from lr_sglang.simulated.model import Model
from lr_sglang.simulated.server import MALFORMED
from lr_sglang.simulated.simulation import Simulation
from lr_sglang.simulated.transport import simulated_roles
from lr_sglang.steps.token_text import TokenText
from tests.scripted import CharTokenizer

# -- stop strings


def cut(text: str, rng: random.Random) -> list[str]:
    """The text in random pieces, some of them empty."""
    places = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(8)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def cut_at(text: str, strings: list[str]) -> int:
    """Where a text ends that comes character by character."""
    for end in range(1, len(text) + 1):
        if found := [end - len(s) for s in strings if text[:end].endswith(s)]:
            return min(found)
    return len(text)


def test_a_text_is_cut_before_the_first_stop_string_however_it_comes():
    for seed in range(300):
        rng = random.Random(seed)
        text = "".join(rng.choice("ab\n") for _ in range(rng.randrange(30)))
        strings = [
            "".join(rng.choice("ab\n") for _ in range(rng.randrange(1, 5)))
            for _ in range(rng.randrange(1, 5))
        ]
        stops = Stops(strings)
        shown = ""
        for piece in cut(text, rng):
            shown += stops.add(piece)
            assert not any(s in shown for s in strings), "nothing of a stop string is ever shown"
        hit = stops.hit
        shown += stops.rest()
        first = cut_at(text, strings)
        assert (shown, hit != "", stops.shown) == (text[:first], first < len(text), first)
        assert not hit or (hit in strings and text.startswith(hit, first))


def test_no_more_is_held_back_than_must_be():
    stops = Stops(["\n\nEND"])
    assert [stops.add(text) for text in ("one", "\n\n", "two\n\nEN", "x")] == [
        "one",
        "",
        "\n\ntwo",
        "\n\nENx",
    ]
    assert beginning("abcab", ["abd", "b"]) == 2


# -- reasoning

SPLITS = {
    "the model opens it": (
        False,
        "<think>\nWell.\n\nSo.\n</think>\n\nIt is 5.",
        "Well.\n\nSo.\n",
        "It is 5.",
    ),
    "the prompt opened it": (True, "Well.\n\n</think>\n\nIt is 5.", "Well.\n\n", "It is 5."),
    "both did": (True, "\n<think>\nWell.</think>5", "Well.", "5"),
    "it is never closed": (True, "Well, <b> and </thin", "Well, <b> and </thin", ""),
    "there is none": (False, "It is 5.\n\nYes.", "", "It is 5.\n\nYes."),
    "it begins like one": (False, "<thin> air", "", "<thin> air"),
    "only the beginning": (False, "<thi", "", "<thi"),
    "empty": (False, "<think>\n\n</think>\n\n5", "", "5"),
    "a marker later is text": (False, "5 <think> 6 </think> 7", "", "5 <think> 6 </think> 7"),
    "nothing at all": (False, "", "", ""),
    "spaces only": (False, "  \n", "", "  \n"),
}


@pytest.mark.parametrize("name", SPLITS)
def test_reasoning_is_told_from_content_however_it_comes(name):
    for seed in range(20):
        inside, text, thought, said = SPLITS[name]
        split = Reasoning(inside)
        found = [
            piece for part in cut(text, random.Random(seed)) for piece in split.add(part)
        ] + list(split.rest())
        for kind, whole in (("reasoning", thought), ("content", said)):
            assert "".join(piece.text for piece in found if piece.kind == kind) == whole
        assert all(piece.text for piece in found)
        kinds = [piece.kind for piece in found]
        assert kinds == sorted(kinds, reverse=True), "reasoning comes first"


def test_reasoning_can_be_left_alone():
    assert list(Reasoning(True, split=False).add("a</think>b")) == [("content", "a</think>b")]


# -- from tokens to text


def by_bytes(ids) -> str:
    """A tokenizer whose tokens are bytes."""
    return bytes(ids).decode("utf-8", "replace")


def test_characters_are_shown_whole_and_tokens_counted():
    for seed in range(200):
        rng = random.Random(seed)
        text = "".join(rng.choice("aé≈🙂\n") for _ in range(rng.randrange(1, 30)))
        stop = rng.choice(["≈🙂", "zz", "é"])
        ids = text.encode()
        delivery, shown, at = StreamText(by_bytes, [stop]), "", 0
        while at < len(ids):
            step = ids[at : at + rng.randrange(1, 9)]
            at += len(step)
            shown += "".join(piece.text for piece in delivery.add(step))
            assert "\ufffd" not in shown
        shown += "".join(piece.text for piece in delivery.rest())
        expected = text.partition(stop)[0]
        assert shown == expected
        assert delivery.stopped == (stop if stop in text else "")
        counted = expected + delivery.stopped
        assert delivery.tokens == len(counted.encode()), (
            "usage counts what was delivered, and the stop string"
        )


def test_half_a_character_at_the_end_is_shown_as_it_is():
    delivery = StreamText(by_bytes)
    assert delivery.add(b"a\xf0\x9f") == [("content", "a")]
    assert delivery.rest() == [("content", "\ufffd")]
    assert delivery.tokens == 3


def test_reasoning_tokens_are_counted():
    delivery = StreamText(by_bytes, reasoning=Reasoning())
    for step in ("<think>\nwell\n\n", "so\n</think>\n\n", "5"):
        delivery.add(step.encode())
    assert (delivery.reasoning_tokens, delivery.tokens) == (27, 28)
    delivery = StreamText(by_bytes, reasoning=Reasoning(inside=True))
    for step in ("well\n\n", "</thi"):  # held back until the end, which a token budget was
        delivery.add(step.encode())
    delivery.rest()
    assert (delivery.reasoning_tokens, delivery.tokens) == (11, 11)


@pytest.mark.parametrize("inside", [False, True])
def test_reasoning_is_the_same_wherever_steps_are_cut(inside):
    """All 2^n ways to cut the answer into steps of byte tokens, also one for each byte."""
    text = "é</think>\n5é" if inside else "<think>a</think>5"
    ids, thought = text.encode(), "é" if inside else "a"
    until = len(text.partition("5")[0].encode())
    free = [at for at in range(1, len(ids)) if inside or not 1 < at < 5]
    for chosen in range(2 ** len(free)):
        places = [0, *(at for number, at in enumerate(free) if chosen >> number & 1), len(ids)]
        delivery = StreamText(by_bytes, reasoning=Reasoning(inside))
        pieces = [
            piece for a, b in pairwise(places) for piece in delivery.add(ids[a:b])
        ] + delivery.rest()
        assert "".join(piece.text for piece in pieces if piece.kind == "reasoning") == thought, (
            places
        )
        assert (
            "".join(piece.text for piece in pieces if piece.kind == "content")
            == ids[until:].decode()
        ), places
        assert (delivery.reasoning_tokens, delivery.tokens) == (until, len(ids)), places


# -- keys


def test_keys_come_from_a_file_and_from_the_environment(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\nsk-one\n\n  sk-two  \n")
    found = keys.load(file, {keys.VARIABLE: "sk-three,sk-four"})
    assert len(found) == 4
    assert all(found.open_to(f"Bearer sk-{n}") for n in ("one", "two", "three", "four"))
    for wrong in ("", "Bearer", "Bearer ", "Bearer sk-on", "Bearer sk-one2", "Bearer sk-öne"):
        assert not found.open_to(wrong), wrong
    for wrong in ("sk-one", "Basic sk-one", "Bearer # ours"):
        assert not found.open_to(wrong), wrong
    assert found.open_to("bearer sk-one"), "the scheme's case is of no account"


@pytest.mark.parametrize("text", ["", "# nothing\n", None], ids=["empty", "comment", "missing"])
def test_a_key_file_that_cannot_be_is_refused(tmp_path, text):
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=str(file)):
        keys.load(file, {})


def test_without_keys_everybody_may_come_in():
    assert keys.Keys().open_to("") and not len(keys.Keys())


# -- what the operator allows


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost", "127.3.2.1"])
def test_an_endpoint_for_this_machine_needs_no_key(host):
    check_public(Service(host=host), 0, allowed=False)
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.2", "example.org"])
def test_one_for_others_does_unless_it_is_said(host):
    with pytest.raises(ConfigError, match="without a key"):
        check_public(Service(host=host), 0, allowed=False)
    check_public(Service(host=host), 1, allowed=False)
    check_public(Service(host=host), 0, allowed=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"queue": -1},
        {"timeout": 0.0},
        {"port": 70000},
        {"modes": ()},
        {"modes": ("fast",)},
        {"reasoning": "maybe"},
        {"max_depth": 0},
        {"max_body_bytes": 0},
        {"model": " "},
        {"cors": "*"},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError):
        Service.from_dict(wrong)


# -- requests

SERVICE = Service(
    modes=("lookahead", "autoregressive", "lossless"),
    verifiers=("judge", "exact"),
    lookahead=Lookahead(depth=4),
    sampling=Sampling(temperature=0.5, top_k=20),
    limits=Limits(max_tokens=100),
    max_depth=8,
)
ASKED = {"model": "lookahead", "messages": [{"role": "user", "content": "How many?"}]}


def order(more=None, *, service=SERVICE, **fields):
    return options_of(
        ChatRequest.read({**ASKED, **fields, **(more or {})}, refuse=True)[0], service
    )


def test_what_is_not_asked_for_is_the_operators():
    made = order()
    assert made.asked == [{"role": "user", "content": "How many?"}]
    assert (made.mode.name, made.lookahead.depth, made.lookahead.verifier) == (
        "lookahead",
        4,
        "judge",
    )
    assert (made.sampling.temperature, made.sampling.top_k, made.limits.max_tokens) == (
        0.5,
        20,
        100,
    )
    assert not (made.stream or made.usage or made.trace or made.stops)


def test_what_is_asked_for_is_done_within_what_is_allowed():
    ask = {"mode": "lookahead", "depth": 8, "verifier": "exact", "schedule": "sync", "trace": True}
    made = order(
        lookahead=ask,
        temperature=0,
        top_p=0.5,
        top_k=0,
        min_p=0.1,
        seed=-7,
        max_tokens=7,
        stop=["a", "b"],
    )
    look, drawn = made.lookahead, made.sampling
    assert (look.depth, look.verifier, look.schedule, made.trace, made.usage) == (
        8,
        "exact",
        "sync",
        True,
        True,
    )
    assert (drawn.temperature, drawn.top_p, drawn.top_k, drawn.min_p, drawn.seed) == (
        0,
        0.5,
        -1,
        0.1,
        -7,
    )
    assert (made.limits.max_tokens, made.stops) == (7, ("a", "b"))


def test_several_answers_draw_by_themselves_and_the_first_as_one_alone():
    each = order(n=3, seed=5).each()
    assert [one.sampling.seed for one in each] == [5, 6, 7] and {one.answers for one in each} == {1}
    assert each[0] == order(seed=5)


def test_an_answer_that_has_begun_is_no_message():
    begun = [*ASKED["messages"], {"role": "assistant", "content": " It is"}]
    made = order(messages=begun, continue_final_message=True)
    assert (made.prefix, made.asked) == (" It is", order().asked)
    assert order(continue_final_message=True).prefix == ""
    for wrong in ({"messages": begun}, {"messages": begun[1:], "continue_final_message": True}):
        with pytest.raises(Refusal):
            order(**wrong)


@pytest.mark.parametrize(
    ("prefix", "thinks"),
    [("", True), ("so", True), ("so</think>It", False), ("a</think><think>b", True)],
)
def test_an_answer_that_has_begun_may_have_ended_its_reasoning(prefix, thinks):
    opened = TokenText.of("How many?<think>\n", (1, 2), "v")
    known = SimpleNamespace(
        chat=lambda messages, answer: opened,
        encode=lambda text, answer: tuple(map(ord, text)),
        vocabulary="v",
        decode=str,
    )
    made = prepare(
        replace(order(), prefix=prefix), SimpleNamespace(tokenizer=known, context=1000), SERVICE
    )
    assert made.thinks is thinks
    assert made.asked == (opened + prefix if prefix else order().asked) and made.tokens == 2 + len(
        prefix
    )


@pytest.mark.parametrize(
    ("more", "param"),
    [({"n": 9}, "n"), ({"n": 2, "lookahead": {"trace": True}}, "lookahead.trace")],
)
def test_more_answers_than_can_be_made_are_refused(more, param):
    with pytest.raises(Refusal) as caught:
        order(**more)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_lossless_is_exact_at_the_temperature_that_is_asked_for():
    made = order(lookahead={"mode": "lossless"}, temperature=0.4)
    assert (made.lookahead.verifier, made.sampling.temperature) == ("exact", 0.4)


def test_a_seed_is_drawn_where_none_is_given():
    assert len({order().sampling.seed for _ in range(20)}) > 15
    assert order(seed=0).sampling.seed == 0


def test_an_answer_is_never_longer_than_allowed():
    assert order(max_tokens=10**6).limits.max_tokens == 100
    assert order(max_completion_tokens=5, max_tokens=50).limits.max_tokens == 5


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        ({"depth": 9}, "at most 8"),
        ({"width": 2}, "at most 1"),
        ({"mode": "sd"}, "lookahead, autoregressive, lossless"),
        ({"verifier": "verifier.py:Mine"}, "judge, exact"),
    ],
)
def test_what_is_not_allowed_says_what_is(ask, says):
    with pytest.raises(Refusal, match=says) as caught:
        order(lookahead=ask)
    assert caught.value.status == 400 and caught.value.param == f"lookahead.{next(iter(ask))}"


def test_another_model_is_not_found():
    with pytest.raises(Refusal) as caught:
        order(model="gpt-9")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_messages_as_clients_send_them():
    made = order(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "name": "Ava",
                "content": [{"type": "text", "text": "How "}, {"type": "text", "text": "?"}],
            },
        ]
    )
    assert made.asked == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How ?"},
    ]


@pytest.mark.parametrize(
    "fine",
    [
        {
            "tools": [],
            "tool_choice": "none",
            "response_format": {"type": "text"},
            "modalities": ["text"],
        },
        {
            "tools": None,
            "logprobs": False,
            "n": 1,
            "user": "me",
            "metadata": {"a": [1]},
            "store": True,
            "unheard_of": {},
        },
        {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}},
        {"temperature": 1, "stream": True, "stream_options": {"include_usage": True, "else": 1}},
        {
            "temperature": None,
            "top_p": None,
            "stop": None,
            "stream": None,
            "lookahead": None,
            "max_tokens": None,
        },
    ],
)
def test_what_means_nothing_is_taken(fine):
    assert order(fine)


WRONG = [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content",
    ),
    ({"messages": [*ASKED["messages"], {"role": "assistant", "content": "It is"}]}, "messages"),
    ({"temperature": "0.5"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"top_k": 2**31}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": True}, "n"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a" * 501]}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": [1]}, "stream_options"),
    ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"functions": [{}]}, "functions"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"logprobs": True}, "logprobs"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"lookahead": {"depht": 3}}, "lookahead.depht"),
    ({"lookahead": {"depth": 0}}, "lookahead.depth"),
    ({"lookahead": {"depth": 3.0}}, "lookahead.depth"),
    ({"lookahead": []}, "lookahead"),
]


@pytest.mark.parametrize(("wrong", "param"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_what_is_wrong_is_named(wrong, param):
    with pytest.raises(Refusal) as caught:
        order(**wrong)
    assert caught.value.status == 400 and caught.value.param.startswith(param)
    assert caught.value.message.startswith(f"{caught.value.param}: ")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"stop": ["a"] * 5}, "stop: List should have at most 4 items"),
        ({"stop": 5}, "stop: Input should be text or a list"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content.0.type: ",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages.0.content: Input should be text or a list",
        ),
        (
            {"messages": [{"role": "user", "content": " \n"}]},
            "messages: the last one must be a question",
        ),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        ({"lookahead": 5}, "lookahead: Input should be an object"),
        ({"lookahead": {"str": 1}}, "lookahead.str: Extra inputs"),
    ],
)
def test_an_error_says_where_it_is_and_what_is_expected(wrong, said):
    with pytest.raises(Refusal) as caught:
        order(**wrong)
    assert caught.value.message.startswith(said)


MANY = 5000


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": [{"role": "user", "content": [[]] * MANY}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * MANY}]},
        {"messages": [{"role": "nobody", "content": [{"type": 1}]}] * MANY},
        {"stop": [1] * MANY},
        {"lookahead": {f"k{number}": 0 for number in range(MANY)}},
    ],
)
def test_of_many_errors_few_are_made(wrong):
    with pytest.raises(Refusal) as caught:
        order(**wrong)
    assert caught.value.param.startswith(next(iter(wrong)))
    assert caught.value.__context__.error_count() < 10


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [""]},
        {"prompt": ["a", "b"]},
        {"prompt": [1, 2]},
        {"prompt": [[1]]},
    ]
    + [
        {"prompt": "a", key: value}
        for key, value in (("echo", True), ("suffix", "x"), ("best_of", 2), ("logprobs", 0))
    ],
)
def test_completions_that_are_not_supported(wrong):
    with pytest.raises(Refusal):
        CompletionRequest.read({"model": "lookahead", **wrong}, refuse=True)


@pytest.mark.parametrize("prompt", ["Once", ["Once"]])
def test_a_prompt_is_text(prompt):
    assert options_of(CompletionRequest(model="lookahead", prompt=prompt), SERVICE).asked == "Once"


# -- errors


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (PromptTooLong("too long"), 400, "context_length_exceeded"),
        (ConfigError("cannot be"), 400, None),
        (RuntimeDown("http://10.1.2.3:4 does not answer", role="target"), 503, "target_down"),
        (RuntimeBusy("busy"), 503, "overloaded"),
        (RuntimeTimeout("late"), 504, "target_timeout"),
        (RuntimeRefused("/generate: 500 Traceback"), 502, "target_failed"),
        (BadReply("garbage"), 502, "target_failed"),
        (Cancelled("stopped"), 503, "shutting_down"),
        (ZeroDivisionError("secret"), 500, "internal_error"),
        (errors.refusal("queue_full", again=7), 429, "queue_full"),
        (errors.refusal("invalid_api_key"), 401, "invalid_api_key"),
    ],
)
def test_every_error_has_its_status_and_openais_form(error, status, code):
    refusal = refusal_of(error)
    body = json.loads(json.dumps(refusal.body()))["error"]
    assert (refusal.status, body["code"]) == (status, code)
    assert body.keys() == {"message", "type", "param", "code"} and body["message"] and body["type"]
    assert (
        "10.1.2.3" not in body["message"]
        and "secret" not in body["message"]
        and "Traceback" not in body["message"]
    )
    assert ("Retry-After" in refusal.headers()) == (status in (429, 503))


def test_the_log_is_told_the_kind_of_the_cause_and_not_its_words():
    cause = RuntimeRefused("/generate: 500 secret")
    cause.status = 500
    refusal = refusal_of(cause)
    refusal.__cause__ = cause
    assert refusal.log_fields() == {"error": "target_failed", "cause": "RuntimeRefused 500"}
    assert errors.refusal("queue_full", again=7).log_fields() == {"error": "queue_full"}


# -- the queue


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def test_first_come_first_served_and_the_rest_is_sent_away():
    async def scene():
        admission, order = Admission(1, 2), []

        async def one(name):
            await admission.enter()
            order.append(name)

        await admission.enter()
        waiting = [asyncio.create_task(one(name)) for name in "ab"]
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as caught:
            await admission.enter()
        assert caught.value.status == 429 and int(caught.value.headers()["Retry-After"]) >= 1
        for _ in waiting:
            admission.leave(2.0)
            await asyncio.sleep(0)
        assert order == ["a", "b"] and admission.running == 1 and not admission.waiting
        admission.leave()
        assert admission.running == 0

    run(scene())


@pytest.mark.parametrize("turn", [False, True], ids=["waiting", "its turn just came"])
def test_who_gives_up_takes_nobodys_place(turn):
    async def scene():
        admission = Admission(1, 5)
        await admission.enter()
        gives_up, stays = (asyncio.create_task(admission.enter()) for _ in range(2))
        await asyncio.sleep(0)
        if turn:
            admission.leave()
        gives_up.cancel()
        await asyncio.sleep(0)
        if not turn:
            assert not stays.done()
            admission.leave()
        await stays
        assert admission.running == 1 and not admission.waiting

    run(scene())


def test_who_waits_when_it_closes_is_told():
    async def scene():
        admission = Admission(1, 5)
        await admission.enter()
        waiting = asyncio.create_task(admission.enter())
        await asyncio.sleep(0)
        admission.close()
        for attempt in (waiting, admission.enter()):
            with pytest.raises(Refusal) as caught:
                await attempt
            assert caught.value.status == 503
        admission.leave()
        assert admission.running == 0

    run(scene())


# -- the watch


GOOD = {
    "text": "a",
    "output_ids": [1, 2],
    "meta_info": {"finish_reason": {"type": "stop", "matched": 2}},
}
RUBBISH = [
    json.loads(answer.body) for kind in MALFORMED if isinstance(answer := kind(GOOD), JSONResponse)
]


class Runtime:
    """A transport that does what it is told: go well, fail, or hang until it is cancelled."""

    def __init__(self):
        self.fails, self.hangs, self.probes, self.tokens = None, False, [], []

    async def generate(self, payload, request, timeout):
        request.sending(lambda request: None)
        deadline = time.monotonic() + min(timeout, 5)
        try:
            while self.hangs and not request.cancelled:
                if time.monotonic() > deadline:
                    raise RuntimeTimeout("late")
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            request.raise_if_closed("draft")
            raise
        if request.cancelled:
            raise Cancelled("cancelled")
        if isinstance(self.fails, Exception):
            raise self.fails
        return self.fails or GOOD

    async def get(self, path, timeout):
        self.probes.append(path)
        if isinstance(self.fails, RuntimeDown | RuntimeTimeout):
            raise self.fails
        return {}

    async def post(self, path, body, timeout):
        assert path == "/tokenize"
        return {"tokens": self.tokens}

    async def close(self):
        pass


def watched(role="draft", stall=0.1, known=None):
    runtime, heard = Runtime(), []
    gate = Gate(runtime, role)
    watch = Watch(role, gate, stall, lambda role, why: heard.append(why), known)
    return runtime, gate, watch, heard


async def asking(gate, request=None):
    try:
        return await gate.generate({}, request or Request(), 600)
    except Exception as error:  # noqa: BLE001
        return error


def asks(gate, request=None):
    return run(asking(gate, request))


async def looking(watch):
    """As if enough time had passed."""
    watch.gate.answered -= 10
    watch._again = 0.0
    await watch.look()


def look(watch):
    run(looking(watch))


def test_a_runtime_that_cannot_be_reached_is_down_at_once_and_comes_back():
    runtime, gate, watch, heard = watched()
    assert isinstance(asks(gate), dict)
    runtime.fails = RuntimeDown("nobody there")
    look(watch)
    assert watch.down and heard == ["nobody there"]
    time.sleep(0.05)
    assert watch.total() >= 0.05
    look(watch)
    assert watch.down
    runtime.fails = None
    look(watch)
    assert not watch.down and heard == ["nobody there", ""]
    assert watch.total() == watch.total() >= 0.05


def test_a_runtime_that_comes_back_with_another_model_stays_down():
    """The client says so (``tests/unit/test_client.py``)."""
    runtime, _, watch, heard = watched("target")
    runtime.fails = RuntimeDown("nobody there")
    look(watch)
    runtime.fails = ConfigError("another model runs at URL: b, not a")
    for _ in range(3):
        look(watch)
    assert heard == ["nobody there", watch.down] and watch.down == runtime.fails.message


def test_a_runtime_that_comes_back_with_another_models_tokens_stays_down():
    known = CharTokenizer()
    runtime, _, watch, heard = watched("target", known=known)
    runtime.fails = RuntimeDown("nobody there")
    look(watch)
    runtime.fails, runtime.tokens = None, list(range(40, 90))
    for _ in range(3):
        look(watch)
    assert heard == ["nobody there", watch.down] and watch.down.startswith(
        "it has another tokenizer"
    )
    runtime.tokens = list(known.encode(TEXT))
    look(watch)
    assert not watch.down


@pytest.mark.parametrize(
    "fault", [RuntimeDown("http://10.1.2.3:4 is away"), RuntimeRefused("/health: 500 /opt/x.py")]
)
def test_what_is_told_of_a_runtime_is_told_to_anybody(fault):
    health = Health({"target": SimpleNamespace(transport=Runtime())}, Service())
    watch = health.watches["target"]
    for reason in (fault.message, "its requests fail"):
        watch.down = reason
        told = health.report()["target"]["reason"]
        assert told.startswith("it") and "10.1.2.3" not in told and "/opt" not in told
    assert told == "its requests fail"


def test_two_that_change_at_once_are_both_heard():
    """What one watch has seen before the draft was back does not shut the draft for good."""
    backends = {role: SimpleNamespace(transport=Runtime()) for role in ("target", "draft", "judge")}
    health = Health(backends, Service())

    async def scene():
        for fault, shut in ((RuntimeDown("away"), "away"), (None, "")):
            for role in ("draft", "judge"):
                health.gates[role].inner.fails = fault
            await asyncio.gather(*(looking(health.watches[role]) for role in ("judge", "draft")))
            assert [health.gates[role].shut for role in ("target", "draft", "judge")] == [
                "",
                shut,
                shut,
            ]
        health.gates["judge"].inner.fails = RuntimeDown("away")
        await looking(health.watches["judge"])
        assert "no verdicts" in health.gates["draft"].shut and not health.watches["draft"].down

    run(scene())


def test_a_runtime_that_cannot_be_reached_is_looked_at_at_once(monkeypatch):
    """Whoever could not reach it rings; nobody waits for the next turn of the watch."""
    backends = {"target": SimpleNamespace(transport=Runtime())}
    health = Health(backends, Service())
    gate, heard = health.gates["target"], asyncio.Event()
    monkeypatch.setattr(health_module, "LOOK_SECONDS", 600)
    health._changed = lambda role, why: heard.set()

    async def scene():
        health.start()
        await asyncio.sleep(0)
        gate.inner.fails = RuntimeDown("nobody there")
        await asking(gate)
        await heard.wait()
        assert health.state == "down" and gate.shut
        await health.stop()
        assert all(task.done() for task in health._tasks)

    run(scene())


def test_a_watch_survives_what_it_meets(monkeypatch):
    """An error that nobody thought of ends no watch; the next look goes on."""
    backends = {"target": SimpleNamespace(transport=Runtime())}
    health = Health(backends, Service())
    watch, looks = health.watches["target"], asyncio.Queue()

    async def fails():
        looks.put_nowait(None)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(watch, "look", fails)

    async def scene():
        health.start()
        for _ in range(2):
            watch.gate.alarm.set()
            await looks.get()
        await health.stop()

    run(scene())


def test_one_late_answer_to_a_probe_is_not_the_end():
    runtime, _, watch, _ = watched()
    runtime.fails = RuntimeTimeout("late")
    look(watch)
    assert not watch.down
    look(watch)
    assert watch.down


@pytest.mark.parametrize("fault", [RuntimeRefused("500"), BadReply("no JSON"), *RUBBISH])
def test_a_runtime_whose_requests_fail_is_down_until_one_goes_well(fault):
    runtime, gate, watch, _ = watched()
    runtime.fails = fault
    for _ in range(FAILURES):
        asks(gate)
    look(watch)
    assert watch.down
    look(watch)
    assert watch.down, "it is tried out first"
    runtime.fails = None
    look(watch)
    assert not watch.down
    asks(gate)
    assert gate.failures == 0


def refusal(status, kind=RuntimeRefused):
    error = kind(f"{status}")
    error.status = status
    return error


@pytest.mark.parametrize("fault", [refusal(500), refusal(500, WorkerLost), refusal(501)], ids=repr)
def test_what_a_runtime_fails_by_is_counted(fault):
    runtime, gate, _, _ = watched()
    runtime.fails = fault
    asks(gate)
    assert gate.failures == 1 and not fault.retryable


@pytest.mark.parametrize(
    "fault",
    [refusal(429, RuntimeBusy), refusal(503, RuntimeBusy), PromptTooLong("long"), refusal(400)],
    ids=repr,
)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_runtime_that_is_busy_or_finds_a_request_wrong_is_not_down(fault, role):
    runtime, gate, watch, heard = watched(role)
    runtime.fails = fault
    for _ in range(FAILURES + 1):
        assert asks(gate) is fault
    assert fault.retryable is type(fault).retryable, "a verifier rests for it, as the gate does not"
    look(watch)
    assert not watch.down and heard == []


def test_a_router_that_has_no_workers_left_is_found_by_probes():
    """However often it answers that it is busy."""
    runtime, gate, watch, _ = watched("target")
    runtime.fails = refusal(503, RuntimeBusy)
    gate.answered -= 10
    asks(gate)

    async def busy(path, timeout):
        raise refusal(503, RuntimeBusy)

    runtime.get = busy
    run(watch.look())
    assert watch.down


def test_a_single_failure_is_survived():
    runtime, gate, watch, _ = watched()
    runtime.fails = BadReply("once")
    asks(gate)
    runtime.fails = None
    asks(gate)
    look(watch)
    assert not watch.down


def test_a_shut_gate_lets_nobody_wait():
    runtime, gate, _, _ = watched()
    gate.shut, runtime.hangs = "it does not answer", True
    error = asks(gate)
    assert isinstance(error, RuntimeAway) and not error.retryable and error.role == "draft"


@pytest.mark.parametrize("role", ["draft", "target"])
def test_who_waits_for_a_runtime_that_hangs_is_let_go(role):
    runtime, gate, watch, _ = watched(role, stall=0.05)
    runtime.hangs = True

    async def scene():
        asked = asyncio.create_task(asking(gate))
        await asyncio.sleep(0.1)
        await looking(watch)
        if role == "target":
            assert not watch.down and gate.running() == 1, (
                "a long prompt may take as long: only probes tell"
            )
            gate.kick()
        assert isinstance(await asked, RuntimeAway) and gate.running() == 0
        assert bool(watch.down) == (role == "draft")

    run(scene())


def test_who_waits_for_a_simulated_runtime_that_hangs_is_let_go():
    """As with a real one: the request is given up, and not whoever waits for it."""
    transport = simulated_roles(Simulation(Model(steps=3), step_seconds=0.01))["draft"].transport
    transport.faults.order(Fault("hang"))
    gate = Gate(transport, "draft")
    payload = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 9}}

    async def scene():
        asked = asyncio.create_task(gate.generate(payload, Request(), 600))
        for _ in range(5):
            await asyncio.sleep(0)  # it begins, and waits
        assert transport.calls == 1 and gate.kick() == 1
        with pytest.raises(RuntimeAway):
            await asked

    run(scene())


def test_our_own_cancelling_is_no_failure():
    runtime, gate, _, _ = watched()
    request = Request()
    request.cancelled = True
    assert (
        isinstance(asks(gate, request), Cancelled) and gate.failures == 0 and runtime.probes == []
    )


def test_an_answer_that_is_given_up_leaves_the_gate():
    """Its task was cancelled: that is neither a failure nor a request that nobody has answered."""
    runtime, gate, _, _ = watched()
    runtime.hangs = True

    async def scene():
        asked = asyncio.create_task(asking(gate))
        await asyncio.sleep(0)  # it begins, and waits
        assert gate.running() == 1
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert gate.running() == gate.failures == gate.unanswered == 0

    run(scene())


# -- logs


def test_a_line_of_the_log_is_json():
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "request", None, None)
    record.about = {"id": "a\n{", "status": 200}
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line) | {"time": ""} == {
        "time": "",
        "level": "warning",
        "event": "request",
        "id": "a\n{",
        "status": 200,
    }


@pytest.mark.parametrize(
    ("options", "modes"),
    [
        ("", "auto lookahead autoregressive lossless"),
        ("--token-layer ngram", "auto lookahead+sd sd lossless"),
        ("-o lookahead.policy=fixed", "lookahead autoregressive auto lossless"),
        ("--mode lossless", "lossless"),
        ("--target pocket:target --mode autoregressive", "autoregressive"),
    ],
)
def test_the_first_mode_is_the_default(options, modes):
    given = cli.get_command(None, "serve").make_context("serve", options.split()).params
    assert service_of(settle(given), given).modes == tuple(modes.split())
