"""The endpoint's parts, each by itself: what is shown of a text, keys, requests, the queue,
errors.
"""

import asyncio
import json
import random

import pytest

from lr_sglang import pocket
from lr_sglang.config import Limits, Lookahead, Sampling
from lr_sglang.delivery.stream_text import Reasoning, Stops, StreamText
from lr_sglang.engine.client import status_error as of_runtime
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
from lr_sglang.serve import errors
from lr_sglang.serve.engine import Admission
from lr_sglang.serve.errors import Refusal, refusal_of
from lr_sglang.serve.protocol import ChatRequest, CompletionRequest
from lr_sglang.serve.requests import Common, conversation, settled
from lr_sglang.serve.settings import KEYS_VARIABLE, Service, check_public, load_keys
from tests import run_by
from tests.called import settled_service

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


@pytest.mark.parametrize(
    ("thinks", "text", "shown"),
    [
        (True, "a stop</think>b stop", "a stop</think>b "),
        (True, "stop, and never an end </thi", "stop, and never an end </thi"),
        (None, " \n<think>stop</think>\n\nb stop c", " \n<think>stop</think>\n\nb "),
        (None, "<thin> stop", "<thin> "),
        (None, "a stop</think>", "a "),
        (None, "<thi", "<thi"),
        (False, "<think>stop</think>", "<think>"),
        (True, "st</think>op", "st</think>op"),
    ],
)
def test_a_stop_string_within_a_thought_is_text_where_that_is_asked_for(thinks, text, shown):
    for seed in range(40):
        stops = Stops(["stop"], thinks=thinks)
        found = "".join(stops.add(piece) for piece in cut(text, random.Random(seed)))
        found += stops.rest()
        assert (found, stops.shown, stops.hit != "") == (shown, len(shown), shown != text)


# -- reasoning


def test_the_end_of_a_thought_counts_as_reasoning_and_the_line_breaks_after_it_do_not():
    """As on SGLang."""
    text = "Well.\n</think>\n\nIt is 5."
    said = StreamText(lambda ids: "".join(map(chr, ids)), (), Reasoning(True))
    for end in range(len(text)):
        said.add([ord(text[end])])
        assert said.tokens == end + 1
        assert said.reasoning_tokens == min(end + 1, len("Well.\n</think>"))


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


# -- keys


def test_keys_come_from_a_file_and_from_the_environment(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\nsk-one\n\n  sk-two  \n")
    found = load_keys(file, {KEYS_VARIABLE: "sk-three,sk-four"})
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
        load_keys(file, {})


# -- what the operator allows


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.2", "example.org"])
def test_an_endpoint_for_others_needs_a_key_unless_it_is_said(host):
    with pytest.raises(ConfigError, match="without a key"):
        check_public(Service(host=host), 0, allowed=False)
    check_public(Service(host=host), 1, allowed=False)
    check_public(Service(host=host), 0, allowed=True)
    for own in ("127.0.0.1", "::1", "[::1]", "localhost", "127.3.2.1"):
        check_public(Service(host=own), 0, allowed=False)


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
    return settled(ChatRequest.read({**ASKED, **fields, **(more or {})}, refuse=True)[0], service)


def test_what_is_not_asked_for_is_the_operators():
    made = order()
    assert made.request.said == [{"role": "user", "content": "How many?"}]
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
    assert not (made.request.stream or made.request.wish.trace or made.request.stop)


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
    assert (look.depth, look.verifier, look.schedule) == (8, "exact", "sync")
    assert made.request.wish.trace
    assert (drawn.temperature, drawn.top_p, drawn.top_k, drawn.min_p, drawn.seed) == (
        0,
        0.5,
        -1,
        0.1,
        -7,
    )
    assert (made.limits.max_tokens, made.request.stop) == (7, ["a", "b"])
    assert order(max_tokens=10**6).limits.max_tokens == 100, "never longer than allowed"
    assert order(max_completion_tokens=5, max_tokens=50).limits.max_tokens == 5
    assert len({order().sampling.seed for _ in range(20)}) > 15, "drawn where none is given"


def test_several_answers_draw_by_themselves_and_the_first_as_one_alone():
    each = order(n=3, seed=5).each()
    assert [one.sampling.seed for one in each] == [5, 6, 7]
    assert each[0].sampling == order(seed=5).sampling
    last = [one.sampling.seed for one in order(n=2, seed=2**63 - 1).each()]
    assert last == [2**63 - 1, -(2**63)], "SGLang takes 64 bits"


def test_lossless_is_exact_at_the_temperature_that_is_asked_for():
    made = order(lookahead={"mode": "lossless"}, temperature=0.4)
    assert (made.lookahead.verifier, made.sampling.temperature) == ("exact", 0.4)


def test_messages_as_clients_send_them():
    made = order(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "name": "Ava",
                "content": [{"type": "text", "text": "How "}, {"type": "text", "text": "?"}],
            },
            {"role": "assistant", "content": "So", "phase": "commentary", "prefix": True},
            {"role": "user", "content": "Go on."},
        ]
    )
    parts = [{"type": "text", "text": "How "}, {"type": "text", "text": "?"}]
    assert made.request.said == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "So", "phase": "commentary", "prefix": True},
        {"role": "user", "content": "Go on."},
    ]
    told = conversation(made)
    assert [turn["role"] for turn in told] == ["system", "user", "assistant", "user"]
    assert told[1]["content"] == "How  ?", "joined as SGLang joins them"


@pytest.mark.parametrize(
    "fine",
    [
        {
            "tools": [],
            "tool_choice": "none",
            "response_format": {"type": "text"},
            "regex": None,
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
        {"stop": ["a"] * 32},
        {"messages": [{"role": role, "content": "?"} for role in ("latest_reminder", "root")]},
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


CALL = {"function": {"name": "add", "arguments": "[1]"}}
WRONG = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, "messages"),
    ({"reasoning_effort": "much"}, "reasoning_effort"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
    ({"frequency_penalty": 2.5}, "frequency_penalty"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"min_tokens": 8, "max_tokens": 7}, "min_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"max_tokens": 50.5}, "max_tokens"),
    ({"max_tokens": "fifty"}, "max_tokens"),
    ({"lookahead": {"depth": 2.5}}, "lookahead.depth"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 2**31}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"seed": 2**63}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 9}, "n"),
    ({"n": 2, "lookahead": {"trace": True}}, "lookahead.trace"),
    ({"stop": ["a"] * 33}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a" * 501]}, "stop"),
    ({"stream": "perhaps"}, "stream"),
    ({"stream_options": [1]}, "stream_options"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"logprobs": True}, "logprobs"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"lookahead": {"depht": 3}}, "lookahead.depht"),
    ({"lookahead": {"depth": 0}}, "lookahead.depth"),
    ({"lookahead": []}, "lookahead"),
]


# what is not allowed, and what is
NOT_ALLOWED = [
    ({"lookahead": {"depth": 9}}, "lookahead.depth", "at most 8"),
    ({"lookahead": {"width": 2}}, "lookahead.width", "at most 1"),
    ({"lookahead": {"mode": "sd"}}, "lookahead.mode", "lookahead, autoregressive, lossless"),
    ({"lookahead": {"verifier": "verifier.py:Mine"}}, "lookahead.verifier", "judge, exact"),
]


@pytest.mark.parametrize(
    ("wrong", "param", "says"), [*((*row, None) for row in WRONG), *NOT_ALLOWED]
)
def test_what_is_wrong_is_named(wrong, param, says):
    with pytest.raises(Refusal, match=says) as caught:
        order(**wrong)
    assert caught.value.status == 400 and caught.value.param.startswith(param)
    assert caught.value.message.startswith(f"{caught.value.param}: ")


WHOLE = ("top_k", "seed", "max_tokens", "max_completion_tokens", "n", "min_tokens")


@pytest.mark.parametrize("written", [3.0, "3"])
def test_a_whole_number_is_one_however_it_is_written_as_for_sglang(written):
    asked, expected = dict.fromkeys(WHOLE, written), dict.fromkeys(WHOLE, 3)
    asked |= {"stop_token_ids": [written], "lookahead": {"depth": written}, "n": written}
    made = order(asked).request
    assert {name: getattr(made, name) for name in WHOLE} == expected
    assert made.stop_token_ids == [3] and made.wish.depth == 3
    passed = Common.model_validate(dict.fromkeys(Common.model_fields.keys() & set(WHOLE), written))
    assert passed.model_dump(exclude_none=True) == {"n": 3, "max_tokens": 3} | {
        "max_completion_tokens": 3
    }


def test_other_values_are_converted_as_sglang_converts_them():
    made = order(temperature="0.5", stream="true", separate_reasoning=0, top_p="0.25").request
    assert (made.temperature, made.stream, made.separate_reasoning, made.top_p) == (
        0.5,
        True,
        False,
        0.25,
    )
    read, why = CompletionRequest.read({"prompt": [5.0, 6]}, refuse=False)
    assert read.said == (5, 6) and not why


def test_a_model_has_several_names_and_none_need_be_given():
    service = SERVICE.replace(aliases=("gpt-4o", "lookahead:latest"))
    for name in (None, "lookahead", "gpt-4o", "lookahead:latest"):
        assert settled(ChatRequest.read({**ASKED, "model": name}, refuse=True)[0], service)
        assert not service.adapter(name)
    for name, adapter in (("gpt-4o:poet", ":poet"), ("lookahead:latest:poet", ":poet")):
        assert service.adapter(name) == adapter
    for name in ("", "gpt-4", "poet", ":poet", "gpt-4o-mini"):
        with pytest.raises(Refusal):
            service.adapter(name)
    nameless = {key: value for key, value in ASKED.items() if key != "model"}
    assert settled(ChatRequest.read(nameless, refuse=True)[0], service)


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [""]},
        {"prompt": ["a", "b"]},
        {"prompt": [[1], [2]]},
        {"prompt": [1, -2]},
    ]
    + [
        {"prompt": "a", key: value}
        for key, value in (("echo", True), ("suffix", "x"), ("best_of", 2), ("logprobs", 0))
    ],
)
def test_completions_that_are_not_supported(wrong):
    with pytest.raises(Refusal):
        CompletionRequest.read({"model": "lookahead", **wrong}, refuse=True)


# -- errors

# What SGLang's server says, with a place of its own in it, and what of that is a client's business.
TOLD = [
    (
        "1 validation error:\n  {'type': 'missing', 'loc': ('body', 'input'), 'msg': 'Field "
        "required', 'input': {}}\n\n  File \"/opt/sglang/srt/http_server.py\", line 1719, in embed\n"
        "    POST /v1/embeddings [{'type': 'missing', 'loc': ('body', 'input'), 'msg': 'Field "
        "required', 'input': {}}]",
        ("input: Field required", "input"),
    ),
    (
        "[{'type': 'value_error', 'loc': ['body', 'n'], 'msg': 'Value error, it\\'s \"much\"'}]",
        ('n: it\'s "much"', "n"),
    ),
    (
        'Traceback (most recent call last):\n  File "/opt/a.py", line 3, in f\n    x = y\nE: bad',
        ("E: bad", None),
    ),
    ("no file /srv/cache/hub/x.json:12 here", ("no file (a path) here", None)),
    ("cannot load /data/mine/adapter", ("cannot load /data/mine/adapter", None)),
    ("see http://a.example/b/c, /v1/models and/or line 1", None),
]


@pytest.mark.parametrize(("message", "told"), TOLD)
def test_a_servers_message_says_nothing_of_its_machine(message, told):
    sent = '{"lora_path": "/data/mine/adapter"}'
    assert errors.told_by_server(message, sent) == (told or (message, None))


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("invalid_api_key", 401, "authentication_error"),
        ("request_too_large", 413, "request_too_large"),
        ("queue_full", 429, "rate_limit_error"),
        ("internal_error", 500, "api_error"),
        ("target_failed", 502, "api_error"),
        ("target_down", 503, "overloaded_error"),
        ("target_timeout", 504, "timeout_error"),
    ],
)
def test_every_error_of_anthropics_routes_has_its_own_form(code, status, kind):
    found = errors.refusal(code, limit=1)
    assert found.status == status
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        assert found.body(path) == {
            "type": "error",
            "error": {"type": kind, "message": found.message},
        }
    assert found.body("/v1/messagesx").keys() == {"error"}


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (PromptTooLong("too long"), 400, "context_length_exceeded"),
        (ConfigError("cannot be"), 400, None),
        (RuntimeDown("http://10.1.2.3:4 does not answer", role="target"), 503, "target_down"),
        (RuntimeBusy("busy"), 503, "overloaded"),
        (RuntimeTimeout("late"), 504, "target_timeout"),
        (RuntimeRefused("/generate: 500 Traceback"), 502, "target_failed"),
        (of_runtime(500, "Traceback", "/generate", "target"), 502, "target_failed"),
        (of_runtime(400, "logit_bias must be within", "/generate", "target"), 400, None),
        (BadReply("garbage"), 502, "target_failed"),
        (Cancelled("stopped"), 503, "shutting_down"),
        (ZeroDivisionError("secret"), 500, "internal_error"),
        (errors.refusal("queue_full"), 429, "queue_full"),
        (of_runtime(422, "no such field", "/generate", "target"), 400, None),
        (of_runtime(401, "wrong key", "/generate", "target"), 502, "target_failed"),
        (of_runtime(400, "of the judge's", "/generate", "judge"), 502, "target_failed"),
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


# -- the queue


@run_by(asyncio.run)
async def test_first_come_first_served_and_the_rest_is_sent_away():
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
        admission.leave()
        await asyncio.sleep(0)
    assert order == ["a", "b"] and admission.running == 1 and not admission.waiting
    admission.leave()
    assert admission.running == 0


# -- modes


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
    assert settled_service(options.split()).modes == tuple(modes.split())


def test_a_deployment_names_its_model_and_an_option_names_it_otherwise(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[serve]\nmodel = "house"\naliases = ["gpt-4o", "best"]\n'
        '[runtimes.target]\nmodel = "pocket:target-thinks"\n'
        '[runtimes.draft]\nmodel = "pocket:draft-thinks"\n[shared]\njudge = "target"\n'
    )
    assert settled_service(("--deployment", str(file))).names == ("house", "gpt-4o", "best")
    options = ("-o", "serve.model=villa", "-o", "serve.aliases=hut", "-o", "serve.drain=5")
    made = settled_service(("--deployment", str(file), *options))
    assert (made.names, made.drain) == (("villa", "hut"), 5.0)
    folder = str(pocket.weights("target-thinks"))
    for target in ("pocket:target-thinks", folder):
        made = settled_service(("--target", target, "--mode", "autoregressive"))
        assert made.names == ("pocket:target-thinks",)
