"""What clients send, in one table: each body is answered by lookahead reasoning as the bare target
answers it, with the same status, text, end and usage; and each conversation has the target's own
prompt.

The target thinks; the endpoint answers by ``lossless``, so that not a token may differ.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from lr_sglang.engine.server_facts import ServerFacts
from lr_sglang.engine.tokenizer import load_tokenizer
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.pocket import weights
from lr_sglang.serve.protocol import ChatRequest
from lr_sglang.serve.requests import STEERING, RenderedPrompt, settled
from lr_sglang.serve.settings import Service
from tests import FULL
from tests.compared import ask, difference, legal
from tests.e2e.conftest import RICH, Pocket, Stand
from tests.endpoint import CHAT, COMPLETIONS, TOOL
from tests.serving import HTTP, Process, serving

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
QUESTION = "Sam has 3 pens. Ben brings 2 boxes with 4 pens each. How many pens are there?"
ASKED = [{"role": "user", "content": QUESTION}]
THINKS, THINKS_NOT = {"enable_thinking": True}, {"enable_thinking": False}
MARKED = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


# -- bodies

BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, body)
    for body in (
        {},
        {"chat_template_kwargs": THINKS},
        {"chat_template_kwargs": THINKS_NOT},
        {"chat_template_kwargs": {"thinking": True, "unheard_of": [1]}},
        {"chat_template_kwargs": {}},
        {"chat_template_kwargs": None, "reasoning_effort": None},
        {"reasoning_effort": "none"},
        {"reasoning_effort": "low"},
        {"reasoning_effort": "high"},
        {"reasoning_effort": 0.5},
        {"reasoning_effort": "none", "chat_template_kwargs": THINKS},
        {"reasoning": {"effort": "none"}},
        {"reasoning": {"enabled": True}},
        {"separate_reasoning": False},
        {"stream_reasoning": False},
        {"separate_reasoning": False, "chat_template_kwargs": THINKS_NOT},
        {"max_tokens": 1},
        {"max_completion_tokens": 20, "max_tokens": 5},
        {"ignore_eos": True, "max_tokens": 90},
        {"ignore_eos": True, "max_tokens": 60, "chat_template_kwargs": THINKS_NOT},
        {"ignore_eos": True, "skip_special_tokens": False, "max_tokens": 90},
        {"skip_special_tokens": False},
        {"min_tokens": 70, "max_tokens": 90},
        {"min_tokens": 5},
        {"min_tokens": 9, "max_tokens": 8},
        {"stop": "pens"},
        {"stop": ["\n\n", "boxed"]},
        {"stop": "</think>"},
        {"stop": "pens", "no_stop_trim": True},
        {"stop": ["4", "pens"], "no_stop_trim": True, "ignore_eos": True, "max_tokens": 60},
        {"stop_token_ids": [16]},
        {"stop_token_ids": [400, 401, 402]},
        {"stop_token_ids": []},
        {"frequency_penalty": 0.5},
        {"frequency_penalty": -0.25, "max_tokens": 60},
        {"frequency_penalty": 3},
        {"logit_bias": {"20": 4}},
        {"logit_bias": {"20": -100, "30": -100}, "frequency_penalty": 0.25},
        {"logit_bias": {"999999": 1}},
        {"presence_penalty": 0.5},
        {"presence_penalty": 1.5, "temperature": 0, "seed": None},
        {"presence_penalty": 2.5},
        {"repetition_penalty": 1.2},
        {"repetition_penalty": 0.9, "max_tokens": 60},
        {"repetition_penalty": 0},
        {
            "presence_penalty": -0.3,
            "frequency_penalty": 0.1,
            "repetition_penalty": 1.1,
            "logit_bias": {"20": 2},
            "min_tokens": 30,
        },
        {"top_p": 0.7},
        {"top_k": 3},
        {"min_p": 0.2},
        {"n": 2, "temperature": 0},
        {"logprobs": True, "max_tokens": 4},
        {"response_format": {"type": "text"}},
        {"tools": None, "tool_choice": "none", "user": "me", "metadata": {"a": 1}},
        {"messages": [{"role": "system", "content": "Be short."}, *ASKED]},
        {"messages": [{"role": "developer", "content": "Be short."}, *ASKED]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]},
        {"messages": [*ASKED, {"role": "assistant", "content": None}, *ASKED]},
        {"messages": [*ASKED, {"role": "assistant", "reasoning_content": "Hm."}, *ASKED]},
        {"messages": [*ASKED, {"role": "assistant", "content": "Sam has"}]},
        {
            "messages": [*ASKED, {"role": "assistant", "content": "3 + 8"}],
            "continue_final_message": True,
            "presence_penalty": 0.75,
        },
        {
            "messages": [
                *ASKED,
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "11"},
            ]
        },
        # not to its end: this model then calls a tool within its thinking, which some of SGLang's
        # parsers take for the thinking's end (docs/serving.md#thinking)
        {"messages": [{"role": "user", "content": ""}], "max_tokens": 6},
        {"messages": []},
        {"messages": [{"role": "wizard", "content": "?"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"reasoning_effort": "much"},
        {"chat_template_kwargs": {"chat_template": "{{ messages }}"}},
        {"temperature": -1},
        {"top_p": 0},
    )
] + [
    (COMPLETIONS, body)
    for body in (
        {},
        {"prompt": [QUESTION]},
        {"prompt": MARKED},
        {"prompt": MARKED + "<think>\n", "max_tokens": 60},
        {"prompt": [5, 6, 7, 8]},
        {"prompt": [[5, 6, 7, 8]]},
        {"prompt": MARKED, "ignore_eos": True, "max_tokens": 70},
        {"prompt": MARKED, "min_tokens": 40, "max_tokens": 70},
        {"prompt": MARKED, "stop": "pens", "no_stop_trim": True},
        {"prompt": MARKED, "repetition_penalty": 1.3, "max_tokens": 70},
        {"prompt": [QUESTION, "Ann has 4 hats."]},
        {"echo": True},
        {"prompt": ""},
    )
]
# Fields whose effect is in the first tokens: in a short run such answers are not written to their ends.
AT_ONCE = {"frequency_penalty", "logit_bias", "presence_penalty", "repetition_penalty"}
AT_ONCE |= {"top_p", "top_k", "min_p", "n", "messages", "tools", "response_format"}
AT_ONCE |= {"chat_template_kwargs", "reasoning_effort", "reasoning"}
# Statuses that both refuse with differ in these: a schema of ours comes first.
OURS_IS_400 = {422, 400}


def answers(
    thinking: Stand, path: str, body: dict[str, Any], sampling: dict[str, Any], stream: bool
) -> str:
    """What the endpoint answers otherwise than the target."""
    least = {"messages": ASKED} if path == CHAT else {"prompt": QUESTION, "max_tokens": 24}
    if path == CHAT and body.keys() & AT_ONCE and not FULL:
        least["max_tokens"] = 40
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    body = {**least, **sampling, **options, **body}
    direct = ask(thinking.fleet.urls["target"] + path, {**body, "model": "pocket"})
    through = ask(thinking.endpoint.url + path, {**body, "model": "thinker"})
    if direct[0] != 200:
        return "" if through[0] in OURS_IS_400 else f"{direct} but {through}"
    if through[0] != 200:
        return f"200 but {through}"
    return difference(*(_without_seams(answer[1]) for answer in (direct, through)))


def _without_seams(answer: dict[str, Any]) -> dict[str, Any]:
    """Without the line breaks after ``</think>``, which SGLang leaves at the beginning of the
    content, and without the counts of reasoning tokens, to which it counts ``</think>`` otherwise.
    """
    choices = answer["choices"]
    for choice in choices.values() if isinstance(choices, dict) else choices:
        said = choice.get("message", choice)
        said["content"] = (said.get("content") or "").lstrip("\n")
    usage = {name: n for name, n in answer["usage"].items() if name != "reasoning_tokens"}
    return {**answer, "usage": usage}


@pytest.mark.timeout(900)  # 150 answers, ten at a time
@pytest.mark.parametrize(
    ("temperature", "stream"),
    [(0.6, True)] + [(0, False), (0, True), (0.6, False)] * FULL,
)
def test_every_body_is_answered_as_by_the_target(thinking, temperature, stream):
    assert len(BODIES) > 60
    sampling = {"temperature": temperature, "seed": 7, "top_p": 0.95}
    with ThreadPoolExecutor(10) as threads:
        found = threads.map(lambda case: answers(thinking, *case, sampling, stream), BODIES)
    wrong = {f"{path} {body}": one for (path, body), one in zip(BODIES, found, strict=True) if one}
    assert not wrong


def test_where_the_endpoint_answers_otherwise_it_is_as_documented(thinking):
    """Several answers have seeds of their own, and no tokens is no request."""
    asked = {"messages": ASKED, "temperature": 0.6, "seed": 7, "max_tokens": 40}
    several = ask(thinking.endpoint.url + CHAT, {**asked, "model": "thinker", "n": 2})[1]["choices"]
    for number, choice in enumerate(several):
        own = {**asked, "model": "pocket", "seed": 7 + number}
        (direct,) = ask(thinking.fleet.urls["target"] + CHAT, own)[1]["choices"]
        assert choice["message"]["reasoning_content"] == direct["message"]["reasoning_content"]
    nothing = {**asked, "model": "thinker", "max_tokens": 0}
    assert ask(thinking.endpoint.url + CHAT, nothing)[0] == 400


FOLLOWED = [
    ({"chat_template_kwargs": THINKS_NOT}, True),
    ({"reasoning_effort": "high", "min_tokens": 4, "frequency_penalty": 0.5}, True),
    ({"presence_penalty": 1.5, "repetition_penalty": 1.1, "logit_bias": {"20": 1}}, True),
    ({"logprobs": True}, False),
]


@pytest.mark.parametrize(("body", "followed"), FOLLOWED, ids=str)
def test_what_is_followed_is_drafted_and_what_is_not_is_refused_by_name(thinking, body, followed):
    least = {"model": "thinker", "messages": ASKED, "temperature": 0, "max_tokens": 40}
    asked = {**least, **body}
    reply = HTTP.post(thinking.endpoint.url + CHAT, json=asked, timeout=120)
    about = reply.json()["lookahead"]
    assert about["mode"] == ("lossless" if followed else "target")
    assert not followed or about["drafted_tokens"] > 0
    named = {**asked, "lookahead": {"mode": "lossless"}}
    reply = HTTP.post(thinking.endpoint.url + CHAT, json=named, timeout=120)
    assert reply.status_code == (200 if followed else 400)
    if not followed:
        assert reply.json()["error"]["param"] == "logprobs"


def test_every_chunk_has_the_usage_so_far_where_that_is_asked_for(thinking):
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"messages": ASKED, "temperature": 0, "stream": True, "stream_options": options}
    url, body = thinking.endpoint.url + CHAT, {"model": "thinker", **asked}
    with HTTP.stream("POST", url, json=body, timeout=120) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    chunks = [httpx.Response(200, text=line).json() for line in lines if line != "[DONE]"]
    deltas = [(one, choice["delta"]) for one in chunks for choice in one["choices"]]
    said = [one for one, d in deltas if d.get("content") or d.get("reasoning_content")]
    counts = [one["usage"]["completion_tokens"] for one in said]
    assert counts == sorted(counts) and counts[0] > 0
    assert counts[-1] <= chunks[-1]["usage"]["completion_tokens"]


# -- much to read


def chat(thinking: Stand, messages: list[dict[str, Any]]) -> httpx.Response:
    body = {"model": "thinker", "messages": messages, "temperature": 0, "max_tokens": 20}
    return HTTP.post(thinking.endpoint.url + CHAT, json=body, timeout=240)


@pytest.mark.skipif(not FULL, reason="much to compute: only in test-full")
@pytest.mark.timeout(600)
def test_a_prompt_as_long_as_the_context_beside_seven_chats_is_no_death(thinking):
    """SGLang's own ``/health`` waits until such a prompt is read."""
    (model,) = HTTP.get(f"{thinking.endpoint.url}/v1/models").json()["data"]
    tokenizer = load_tokenizer(str(weights("target-thinks")))
    room = model["max_model_len"] - 60  # the template, and the answer
    text = tokenizer.decode(tokenizer.encode(QUESTION * 400)[:room])
    asked = [[{"role": "user", "content": text}]] + [ASKED] * 7
    with ThreadPoolExecutor(8) as threads:
        answering = [threads.submit(chat, thinking, messages) for messages in asked]
        states = set()
        while not all(one.done() for one in answering):
            told = HTTP.get(f"{thinking.endpoint.url}/ready", timeout=60).json()
            states.add(told["roles"]["target"]["status"])
            time.sleep(0.1)
        replies = [one.result() for one in answering]
    assert [reply.status_code for reply in replies] == [200] * 8, replies[0].text
    assert replies[0].json()["usage"]["prompt_tokens"] > room - 60
    assert states == {"up"}


def test_a_conversation_of_hundreds_of_messages_is_answered(thinking):
    pair = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    reply = chat(thinking, [*pair * 199, *pair[:1]])
    assert reply.status_code == 200 and reply.json()["lookahead"]["mode"] == "lossless"


# -- conversations

TEXTS = [{"type": "text", "text": "One each."}, {"type": "text", "text": "How many?"}]
SAID = {"role": "assistant", "content": "Four.", "reasoning_content": "2 + 2"}
TOLD = {"role": "tool", "tool_call_id": "c1", "name": "add", "content": TEXTS}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "a question": {"messages": ASKED},
    "all roles": {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "developer", "content": "And short."},
            *ASKED,
            SAID,
            {"role": "user", "content": "Why?"},
        ]
    },
    "roles in capitals": {"messages": [{"role": "System", "content": "Be kind."}, *ASKED]},
    "parts": {"messages": [{"role": "user", "content": TEXTS}]},
    "a part": {"messages": [{"role": "user", "content": TEXTS[:1]}]},
    "no parts": {"messages": [{"role": "user", "content": []}]},
    "parts of others": {"messages": [{"role": "system", "content": TEXTS}, *ASKED]},
    "an answer in parts": {"messages": [*ASKED, {"role": "assistant", "content": TEXTS}, *ASKED]},
    "null": {"messages": [*ASKED, {"role": "assistant", "content": None}, *ASKED]},
    "absent": {"messages": [*ASKED, {"role": "assistant", "reasoning_content": "Hm."}, *ASKED]},
    "as a client dumps it": {
        "messages": [
            *ASKED,
            {**SAID, "refusal": None, "audio": None, "tool_calls": None, "function_call": None},
            *ASKED,
        ]
    },
    "names": {"messages": [{"role": "system", "name": "boss", "content": "Be kind."}, *ASKED]},
    "a name of the user": {"messages": [{**ASKED[0], "name": "Ava"}]},
    "nothing": {"messages": [{"role": "user", "content": ""}]},
    "spaces": {"messages": [{"role": "user", "content": "  a \n\n b  "}]},
    "a begun answer": {"messages": [*ASKED, {"role": "assistant", "content": "Sam"}]},
    "a begun answer in parts": {"messages": [*ASKED, {"role": "assistant", "content": TEXTS}]},
    "an answer to go on with": {
        "messages": [*ASKED, {"role": "assistant", "content": "Sam has"}],
        "continue_final_message": True,
    },
    "calls": {"messages": [*ASKED, {"role": "assistant", "tool_calls": [CALL]}, TOLD]},
    "calls with objects": {
        "messages": [
            *ASKED,
            {
                "role": "assistant",
                "content": "I add.",
                "tool_calls": [{"function": {"name": "add", "arguments": {"b": ["é", 2.5]}}}],
            },
            {"role": "tool", "content": "3"},
        ]
    },
    "calls without": {
        "messages": [
            *ASKED,
            {"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]},
            {"role": "tool", "content": None},
        ]
    },
    "thinking": {"messages": ASKED, "chat_template_kwargs": THINKS},
    "no thinking": {"messages": ASKED, "chat_template_kwargs": THINKS_NOT},
    "effort": {"messages": ASKED, "reasoning_effort": "low"},
    "no effort": {"messages": ASKED, "reasoning_effort": "none"},
    "a number": {"messages": ASKED, "reasoning_effort": 0},
    "two efforts": {
        "messages": ASKED,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"reasoning_effort": "high", "enable_thinking": None},
    },
    "what no template knows": {"messages": ASKED, "chat_template_kwargs": {"x": {"y": [1]}}},
    "OpenAI's reasoning": {"messages": ASKED, "reasoning": {"effort": "high"}},
}
TEMPLATES = {"target": "", "draft": RICH.read_text("utf-8").strip("\n")}


@pytest.mark.parametrize("role", TEMPLATES)
def test_a_conversation_has_the_prompt_of_the_server_itself(role, thinking):
    tokenizer = load_tokenizer(str(weights(f"{role}-thinks")), TEMPLATES[role])
    unreached: Any = None
    backend = RuntimeBackend(role, unreached, tokenizer, ServerFacts(context=10**6))
    service, wrong = Service(), {}
    for name, asked in CONVERSATIONS.items():
        if TEMPLATES[role] and name == "a begun answer in parts":
            continue  # SGLang leaves it to a template that reads parts, as a closed turn
        request, why = ChatRequest.read({"model": service.model, **asked}, refuse=True)
        ours = RenderedPrompt(settled(request, service), service, backend)(backend).ids
        reply = HTTP.post(f"{thinking.fleet.urls[role]}/tokenize", json=asked, timeout=60)
        theirs = reply.json().get("tokens", reply.text)
        if why or list(ours) != theirs:
            wrong[name] = (
                tokenizer.spell(ours),
                tokenizer.spell(theirs) if reply.is_success else theirs,
            )
    assert not wrong


# -- route by route and field by field of SGLang's own schema


SHORT = "Sam has 3 pens. Ben brings 2 pens. How many pens are there?"
SHORTLY = [{"role": "user", "content": SHORT}]
# The least that each route takes.
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": SHORTLY, "max_tokens": 8, "temperature": 0},
    COMPLETIONS: {"prompt": SHORT, "max_tokens": 8, "temperature": 0},
    RESPONSES: {"input": SHORT, "max_output_tokens": 8, "temperature": 0},
    MESSAGES: {"messages": SHORTLY, "max_tokens": 8, "temperature": 0},
    "/v1/messages/count_tokens": {"messages": SHORTLY},
    "/v1/embeddings": {"input": SHORT},
    "/v1/classify": {"input": SHORT},
    "/v1/score": {"query": "a", "items": ["b", "c"], "label_token_ids": [5, 6]},
    "/v1/rerank": {"query": "a", "documents": ["b", "c"]},
    **{"/v1/tokenize": {"prompt": SHORT}},
    **{"/v1/detokenize": {"tokens": [5, 6]}},
}
STREAMED = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
FLAT = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
ANTHROPICS = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
FORM = {"type": "json_schema", "json_schema": {"name": "number", "schema": {"type": "integer"}}}
# Where a type alone does not say what is legal, or what changes an answer.
VALUES: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": SHORT}]},
    ],
    "prompt": [SHORT, "Ann has 4 hats."],
    "max_tokens": 150,  # to the answer's own end
    "max_output_tokens": 150,
    "extra_key": "a",
    "cache_salt": "a",
    "watermark": {"enabled": True},
    "temperature": 0,
    "stop": ["pens", "5", "."],
    "stop_sequences": ["pens", "5", "."],
    "logit_bias": {"5": 1.0},
    "response_format": FORM,
    "json_schema": '{"type": "integer"}',
    "regex": "[0-9]{2}",
    "ebnf": 'root ::= "yes" | "no"',
    "stop_token_ids": [5],
    "stop_regex": "[0-9]",
    "input_ids": [5, 6, 7, 8],
    "tools": [TOOL],
    "tool_choice": "none",
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "min_tokens": 4,
}
OTHER_VALUES: dict[str, dict[str, Any]] = {
    RESPONSES: {"tools": [FLAT], "prompt": LEAST, "input": SHORTLY},
    MESSAGES: {
        "messages": SHORTLY,
        "tools": [ANTHROPICS],
        "tool_choice": {"type": "auto"},
        "temperature": 0.0,
    },
    "/v1/messages/count_tokens": {
        "messages": SHORTLY,
        "tools": [ANTHROPICS],
        "tool_choice": {"type": "auto"},
    },
    "/v1/score": {"temperature": 0.5},
    **{"/v1/tokenize": {"prompt": [SHORT, "a"]}},
}
# The endpoint takes no code, and no answer that goes on when its client is gone.
ITS_OWN = {"custom_logit_processor", "background"}
LEFT_OUT = object()


@pytest.fixture(scope="module")
def endpoint(pocket: Pocket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("fields")
    options = ("--mode", "lossless", "--verifier", "exact", "-o", "serve.model=pocket")
    with serving(folder, pocket.fleet.urls, *options) as process:
        yield process


@pytest.fixture(scope="module")
def described(pocket: Pocket) -> dict[str, Any]:
    """What the target says of its routes."""
    found: dict[str, Any] = HTTP.get(
        f"{pocket.fleet.urls['target']}/openapi.json", timeout=60
    ).json()
    return found


def fields(route: str, described: dict[str, Any]) -> list[tuple[str, Any]]:
    """Of a route, each with a legal value; and those it may lack and still answer alike,
    left out.
    """
    schemas = described["components"]["schemas"]
    paths = described["paths"]  # an alias is not in it
    (body,) = paths.get(route, paths.get(f"/v1{route}"))["post"]["requestBody"]["content"].values()
    named = schemas[body["schema"]["$ref"].rpartition("/")[2]]
    values = {**VALUES, **OTHER_VALUES.get(route, {})}
    found = {
        name: values.get(name, legal(one, schemas)) for name, one in named["properties"].items()
    }
    free = {"temperature", *named.get("required", ())}
    without = [(name, LEFT_OUT) for name in LEAST[route] if name not in free]
    return [
        (name, value) for name, value in found.items() if name not in {"stream", *ITS_OWN}
    ] + without


def differences(
    known: list[tuple[str, Any]], route: str, stream: bool, target: str, endpoint: str
) -> dict[str, str]:
    """The fields that are answered otherwise, with what is not the same."""
    options = {"stream": stream} if route in STREAMED else {}
    usage = (
        {"stream_options": {"include_usage": True}}
        if stream and route in (CHAT, COMPLETIONS)
        else {}
    )
    base = {**LEAST[route], **options, **usage}
    itself = HTTP.get(f"{target}/v1/models", timeout=60).json()["data"][0]["id"]

    def compared(field: tuple[str, Any]) -> str:
        name, value = field
        body = {known: one for known, one in {**base, name: value}.items() if one is not LEFT_OUT}
        # a field that steers the server is left out by the endpoint
        direct = ask(target + route, {**(base if name in STEERING else body), "model": itself})
        through = ask(endpoint + route, {**body, "model": "pocket"})
        if direct[0] != through[0]:
            return f"{direct} but {through}"
        return difference(direct[1], through[1]) if direct[0] == 200 else ""

    with ThreadPoolExecutor(2) as threads:
        found = zip(known, threads.map(compared, known), strict=True)
        return {f"{name}={value}": wrong for (name, value), wrong in found if wrong}


ROWS = [(route, False) for route in LEAST] + [(route, True) for route in STREAMED]
# Many requests, each as long as those of the other way or as those of tests/e2e/test_serve_bodies.py.
LONG = {(CHAT, False), (CHAT, True), (COMPLETIONS, False), (COMPLETIONS, True)}
LONG |= {(RESPONSES, False), (RESPONSES, True), (MESSAGES, True)}


@pytest.mark.parametrize(("route", "stream"), [row for row in ROWS if FULL or row not in LONG])
def test_every_field_is_answered_as_by_the_target(route, stream, pocket, endpoint, described):
    known = fields(route, described)
    assert len(known) > (40 if route in (CHAT, COMPLETIONS) else 2)
    assert not differences(known, route, stream, pocket.fleet.urls["target"], endpoint.url)
