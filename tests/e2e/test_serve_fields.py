"""Route by route and field by field of SGLang's own schema, one request for each: the endpoint
answers as the bare target does, at temperature 0, whole and in a stream. The schema is what the
target says of itself, so that no route and no field is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lr_sglang.serve.requests import STEERING
from tests.compared import ask, difference, legal
from tests.e2e.conftest import Pocket, full
from tests.serving import HTTP, Process, serving

QUESTION = "Sam has 3 pens. Ben brings 2 pens. How many pens are there?"
CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
ASKED = [{"role": "user", "content": QUESTION}]
# The least that each route takes.
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": ASKED, "max_tokens": 8, "temperature": 0},
    COMPLETIONS: {"prompt": QUESTION, "max_tokens": 8, "temperature": 0},
    RESPONSES: {"input": QUESTION, "max_output_tokens": 8, "temperature": 0},
    MESSAGES: {"messages": ASKED, "max_tokens": 8, "temperature": 0},
    "/v1/messages/count_tokens": {"messages": ASKED},
    "/v1/embeddings": {"input": QUESTION},
    "/v1/classify": {"input": QUESTION},
    "/v1/score": {"query": "a", "items": ["b", "c"], "label_token_ids": [5, 6]},
    "/v1/rerank": {"query": "a", "documents": ["b", "c"]},
    **{"/v1/tokenize": {"prompt": QUESTION}},
    **{"/v1/detokenize": {"tokens": [5, 6]}},
}
STREAMED = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
FLAT = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
ANTHROPICS = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
FORM = {"type": "json_schema", "json_schema": {"name": "number", "schema": {"type": "integer"}}}
# Where a type alone does not say what is legal, or what changes an answer.
VALUES: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
    ],
    "prompt": [QUESTION, "Ann has 4 hats."],
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
    RESPONSES: {"tools": [FLAT], "prompt": LEAST, "input": ASKED},
    MESSAGES: {
        "messages": ASKED,
        "tools": [ANTHROPICS],
        "tool_choice": {"type": "auto"},
        "temperature": 0.0,
    },
    "/v1/messages/count_tokens": {
        "messages": ASKED,
        "tools": [ANTHROPICS],
        "tool_choice": {"type": "auto"},
    },
    "/v1/score": {"temperature": 0.5},
    **{"/v1/tokenize": {"prompt": [QUESTION, "a"]}},
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


@pytest.mark.parametrize(("route", "stream"), [row for row in ROWS if full or row not in LONG])
def test_every_field_is_answered_as_by_the_target(route, stream, pocket, endpoint, described):
    known = fields(route, described)
    assert len(known) > (40 if route in (CHAT, COMPLETIONS) else 2)
    assert not differences(known, route, stream, pocket.fleet.urls["target"], endpoint.url)
